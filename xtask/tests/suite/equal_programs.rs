//! `deploy/build_static` and `cargo xtask package deb` make equal programs in two folders, shown with a small workspace that
//! has our settings of cargo: two crates, and a file in C.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

const MANIFEST: &str = "[workspace]\nmembers = [\"crates/*\"]\nresolver = \"3\"\n[profile.packaged]\ninherits = \"release\"\n";
const PACKAGE: &str = "[package]\nname = \"NAME\"\nversion = \"0.1.0\"\nedition = \"2024\"\n";
const LOCK: &str = "version = 4\n\n[[package]]\nname = \"kind\"\nversion = \"0.1.0\"\n\n\
                    [[package]]\nname = \"palisade\"\nversion = \"0.1.0\"\ndependencies = [\n \"kind\",\n]\n";
/// The id of a type has its crate's own hash in it; what is generated, and what is in C, names files.
const MAIN: &str = r#"
include!(concat!(env!("OUT_DIR"), "/generated.rs"));
unsafe extern "C" { safe fn file() -> *const std::ffi::c_char; }
fn main() {
    println!("{:?} {:?} {}", std::any::TypeId::of::<kind::Kind>(), file(), generated());
}
"#;
const BUILD: &str = r#"
use std::{env, fs, process::Command};
fn main() {
    let (out, here) = (env::var("OUT_DIR").unwrap(), env::var("CARGO_MANIFEST_DIR").unwrap());
    fs::write(format!("{out}/generated.rs"), "fn generated() -> &'static str { file!() }").unwrap();
    let (flags, object) = (env::var("CFLAGS").unwrap_or_default(), format!("{out}/c.o"));
    let mut cc = Command::new("cc");
    cc.args(flags.split_whitespace()).args(["-c", "-o", &object, &format!("{here}/src/c.c")]);
    assert!(cc.status().unwrap().success());
    assert!(Command::new("ar").args(["crs", &format!("{out}/libc_file.a"), &object]).status().unwrap().success());
    println!("cargo:rustc-link-search={out}\ncargo:rustc-link-lib=static=c_file");
}
"#;

/// A workspace in a folder of this name, with this script.
fn workspace(name: &str, script: &str) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let home = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    let write = |file: &str, text: &str| {
        let file = home.join(file);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, text).unwrap();
    };
    write("Cargo.toml", MANIFEST);
    write("Cargo.lock", LOCK);
    write("crates/kind/Cargo.toml", &PACKAGE.replace("NAME", "kind"));
    write("crates/kind/src/lib.rs", "pub struct Kind;\n");
    let palisade =
        PACKAGE.replace("NAME", "palisade") + "[dependencies]\nkind = { path = \"../kind\" }\n";
    write("crates/palisade/Cargo.toml", &palisade);
    write("crates/palisade/build.rs", BUILD);
    write("crates/palisade/src/main.rs", MAIN);
    write(
        "crates/palisade/src/c.c",
        "const char *file(void) { return __FILE__; }\n",
    );
    write("deploy/build_static", script);
    for name in ["config.toml", "rustc"] {
        write(&format!(".cargo/{name}"), "");
        fs::copy(
            root.join(".cargo").join(name),
            home.join(".cargo").join(name),
        )
        .unwrap();
    }
    // The real one needs files of the repository.
    write("deploy/debian/build", "#!/bin/sh\necho package\n");
    fs::set_permissions(
        home.join("deploy/debian/build"),
        fs::Permissions::from_mode(0o755),
    )
    .unwrap();
    home
}

fn run(build: &mut Command) {
    for variable in [
        "CARGO_TARGET_DIR",
        "CFLAGS",
        "RUSTFLAGS",
        "RUSTC_WORKSPACE_WRAPPER",
    ] {
        build.env_remove(variable);
    }
    let output = build.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
}

/// The program that the script makes in a folder of this name.
fn program(name: &str, script: &str) -> Vec<u8> {
    let home = workspace(name, script);
    let mut build = Command::new("sh");
    run(build
        .args(["deploy/build_static", "made"])
        .current_dir(&home));
    fs::read(home.join("made/usr/bin/palisade")).unwrap()
}

/// The one that the Debian package contains.
fn of_debian(name: &str) -> Vec<u8> {
    let home = workspace(name, "");
    let mut build = Command::new(env!("CARGO_BIN_EXE_xtask"));
    build
        .args(["package", "deb"])
        .env("CARGO_MANIFEST_DIR", home.join("xtask"));
    run(&mut build);
    fs::read(home.join("target/packaged/palisade")).unwrap()
}

#[test]
fn two_folders_make_equal_programs_and_each_setting_is_needed() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let script = fs::read_to_string(root.join("deploy/build_static")).unwrap();
    let first = program("equal_programs_1", &script);
    assert!(first == program("equal_programs_2", &script), "they differ");
    assert!(
        of_debian("equal_programs_3") == of_debian("equal_programs_4"),
        "those of Debian differ"
    );
    for (number, needed) in [
        "export RUSTC_WORKSPACE_WRAPPER=",
        "--remap-path-prefix=$PWD=/palisade",
        "-ffile-prefix-map=$PWD=/palisade",
    ]
    .iter()
    .enumerate()
    {
        let without = script.replace(needed, "");
        assert_ne!(without, script, "{needed} is no part of the script");
        let [one, two] = ["one", "two"].map(|folder| {
            program(
                &format!("equal_programs_without_{number}_{folder}"),
                &without,
            )
        });
        assert!(one != two, "without `{needed}` they are equal, too");
    }
}
