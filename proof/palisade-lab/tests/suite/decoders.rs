//! The bounded smoke run of the fuzz targets: the committed corpus, and mutations of it.

use std::collections::BTreeMap;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;

use palisade_lab::decoders::{Mutator, TARGETS, Target};

fn corpus_of(target: &Target) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../fuzz/corpus")
        .join(target.name)
}

fn corpus(target: &Target) -> BTreeMap<String, Vec<u8>> {
    let folder = corpus_of(target);
    let files =
        fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    files
        .map(|file| file.unwrap())
        .map(|file| {
            let name = file.file_name().into_string().unwrap();
            (name, fs::read(file.path()).unwrap())
        })
        .collect()
}

fn rounds() -> u64 {
    match std::env::var("PALISADE_FUZZ_ROUNDS") {
        Ok(number) => number.parse().expect("PALISADE_FUZZ_ROUNDS is a number"),
        Err(_) => 20_000,
    }
}

fn smoke(name: &str) {
    let target = palisade_lab::decoders::target(name).unwrap();
    let corpus = corpus(target);
    for (file, bytes) in &corpus {
        let ran = catch_unwind(|| (target.run)(bytes));
        assert!(ran.is_ok(), "{name}: panics on the corpus's {file}");
        assert!(ran.unwrap(), "{name}: the corpus's {file} is not accepted");
    }
    let mut mutator = Mutator::new(1, corpus.into_values().collect());
    let mut accepted = 0;
    for round in 0..rounds() {
        let input = mutator.input();
        match catch_unwind(AssertUnwindSafe(|| (target.run)(&input))) {
            Ok(good) => accepted += u64::from(good),
            Err(_) => {
                let kept = std::env::temp_dir().join(format!("palisade-fuzz-{name}-{round}"));
                fs::write(&kept, &input).unwrap();
                panic!(
                    "{name}: panics in round {round}; the input is in {}",
                    kept.display()
                );
            }
        }
    }
    println!("{name}: {accepted} of {} inputs were accepted", rounds());
    assert!(accepted > 0, "{name}: no input passes the first check");
}

/// One test per target: `PALISADE_FUZZ_ROUNDS` (20,000) mutations of its corpus, always the same ones.
macro_rules! smoke {
    ($($name:ident)*) => {
        $(#[test]
        fn $name() {
            smoke(stringify!($name));
        })*

        #[test]
        fn every_target_is_run() {
            let names: Vec<&str> = TARGETS.iter().map(|target| target.name).collect();
            assert_eq!(names, [$(stringify!($name)),*]);
        }
    };
}

smoke! { wire json log snapshot log_file snapshot_file identity history words }

/// Detects changes of a format. `PALISADE_WRITE_CORPUS=1` writes the new corpus.
#[test]
fn the_corpus_matches_the_encoders() {
    for target in TARGETS {
        for (name, bytes) in (target.seeds)() {
            let file = corpus_of(target).join(name);
            if std::env::var_os("PALISADE_WRITE_CORPUS").is_some() {
                fs::create_dir_all(corpus_of(target)).unwrap();
                fs::write(&file, &bytes).unwrap();
            }
            let kept =
                fs::read(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
            assert!(
                kept == bytes,
                "{} is not what the encoder writes",
                file.display()
            );
        }
    }
}

/// Control: a decoder that does panic is found, so the smoke run can fail.
#[test]
fn a_decoder_that_panics_is_found() {
    let careless = |bytes: &[u8]| assert!(bytes.len() < 3 || bytes[2] != 0xff, "the third byte");
    let mut mutator = Mutator::new(1, vec![b"harmless".to_vec()]);
    let found = (0..20_000).any(|_| {
        let input = mutator.input();
        input.len() >= 3 && input[2] == 0xff && catch_unwind(|| careless(&input)).is_err()
    });
    assert!(found);
}
