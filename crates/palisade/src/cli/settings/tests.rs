use std::ffi::OsString;
use std::fs;

use clap::CommandFactory as _;

use super::{Cli, CommandLineRefused, Setting, SettingOrigin, settle};

/// The settings of `serve` with these flags, variables and lines of a file.
fn settled(flags: &[&str], variables: &[(&str, &str)], file: &str) -> Result<Vec<Setting>, String> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("palisade.toml");
    fs::write(&path, file).unwrap();
    let path = path.to_str().unwrap();
    let words = ["palisade", "serve", "--config", path];
    let words = words.iter().chain(flags).map(OsString::from).collect();
    let read = |name: &str| {
        let found = variables.iter().find(|(variable, _)| *variable == name);
        found.map(|(_, value)| OsString::from(value))
    };
    let settled = settle(&Cli::command(), words, &read);
    let settled = settled.map_err(|refused| match refused {
        CommandLineRefused::Words(error) => format!("words: {}", error.render()),
        CommandLineRefused::Settings(failure) => failure.message,
    });
    let short = |text: String| text.replace(path, "palisade.toml");
    settled.map(|(_, settings)| settings).map_err(short)
}

fn one(settings: &[Setting], key: &str) -> (Vec<String>, String) {
    let setting = settings.iter().find(|setting| setting.key == key).unwrap();
    let origin = match &setting.origin {
        SettingOrigin::File { line, .. } => format!("line {line}"),
        other => other.to_string(),
    };
    (setting.values.clone(), origin)
}

const FILE: &str = "\
[serve]
listen = \"127.0.0.1:1\"
min-ttl = \"1s\"
max-ttl = \"2s\"
connections = 5_000
allow-host = [\"a.example\", \"b.example\"]
insecure = true
";

#[test]
fn flags_win_over_the_environment_and_that_over_the_file() {
    let variables = [
        ("PALISADE_MIN_TTL", "3s"),
        ("PALISADE_LISTEN", "127.0.0.1:3"),
    ];
    let settings = settled(&["--listen", "127.0.0.1:4"], &variables, FILE).unwrap();
    let of = |key| one(&settings, key);
    assert_eq!(of("listen"), (vec!["127.0.0.1:4".into()], "flag".into()));
    assert_eq!(
        of("min-ttl"),
        (vec!["3s".into()], "PALISADE_MIN_TTL".into())
    );
    assert_eq!(of("max-ttl"), (vec!["2s".into()], "line 4".into()));
    assert_eq!(of("connections"), (vec!["5000".into()], "line 5".into()));
    let hosts = vec!["a.example".into(), "b.example".into()];
    assert_eq!(of("allow-host"), (hosts, "line 6".into()));
    assert_eq!(of("insecure"), (vec!["true".into()], "line 7".into()));
    assert_eq!(
        of("data"),
        (vec!["./palisade-data".into()], "default".into())
    );
    assert_eq!(of("access"), (vec![], "default".into()));
}

#[test]
fn a_list_is_replaced_as_a_whole() {
    let settings = settled(&["--allow-host", "c.example"], &[], FILE).unwrap();
    assert_eq!(
        one(&settings, "allow-host"),
        (vec!["c.example".into()], "flag".into())
    );
}

#[test]
fn a_server_listens_on_several_addresses_from_everywhere() {
    let both = vec!["127.0.0.1:1".to_owned(), "unix:/run/p.sock".to_owned()];
    let in_file = FILE.replace(
        "listen = \"127.0.0.1:1\"",
        "listen = [\"127.0.0.1:1\", \"unix:/run/p.sock\"]",
    );
    let commas = "127.0.0.1:1,unix:/run/p.sock";
    for (settings, origin) in [
        (
            settled(&["--listen", &both[0], "--listen", &both[1]], &[], FILE),
            "flag",
        ),
        (settled(&["--listen", commas], &[], FILE), "flag"),
        (
            settled(&[], &[("PALISADE_LISTEN", commas)], FILE),
            "PALISADE_LISTEN",
        ),
        (settled(&[], &[], &in_file), "line 2"),
    ] {
        let (mut values, from) = one(&settings.unwrap(), "listen");
        if origin == "PALISADE_LISTEN" {
            // As it was written.
            values = values
                .iter()
                .flat_map(|value| value.split(','))
                .map(str::to_owned)
                .collect();
        }
        assert_eq!((values, &*from), (both.clone(), origin));
    }
}

#[test]
fn a_switch_is_turned_off_by_a_variable() {
    let settings = settled(&[], &[("PALISADE_INSECURE", "false")], FILE).unwrap();
    let off = (vec!["false".into()], "PALISADE_INSECURE".into());
    assert_eq!(one(&settings, "insecure"), off);
    let why = settled(&[], &[("PALISADE_INSECURE", "no")], FILE).unwrap_err();
    assert_eq!(why, "PALISADE_INSECURE is \"no\"; write true or false");
}

#[test]
fn a_mistake_is_named_with_its_place() {
    for (file, why) in [
        (
            "listen = 1",
            "palisade.toml, line 1: there is no section [listen]; the sections are [serve], [store], [gateway]",
        ),
        (
            "[server]",
            "palisade.toml, line 1: there is no section [server]; is [serve] meant?",
        ),
        (
            "\n[store]\nlisen = \"x\"",
            "palisade.toml, line 3: [store] has no setting \"lisen\"; is \"listen\" meant?",
        ),
        (
            "[serve]\nmin_ttl = \"1s\"",
            "palisade.toml, line 2: [serve] has no setting \"min_ttl\"; is \"min-ttl\" meant?",
        ),
        (
            "[serve]\nnonsense = 1",
            "palisade.toml, line 2: [serve] has no setting \"nonsense\"; `palisade serve --help` lists the flags, which \
             are the keys",
        ),
        (
            "[serve]\ninsecure = \"yes\"",
            "palisade.toml, line 2: insecure: write true or false",
        ),
        (
            "[serve]\ndata = true",
            "palisade.toml, line 2: data: write a text in quotation marks, or a whole number",
        ),
        (
            "[serve]\ndata = [\"a\"]",
            "palisade.toml, line 2: data: it takes one value",
        ),
        (
            "[serve]\nconfig = \"x\"",
            "palisade.toml, line 2: [serve] has no setting \"config\"",
        ),
        (
            "serve = 3",
            "palisade.toml, line 1: write [serve] and the settings below it",
        ),
        ("[serve]\nlisten = ", "palisade.toml, line 2: "),
        (
            "[serve]\nlisten = \"x\"",
            "palisade.toml, line 2: invalid value 'x' for '--listen <ADDRESS>': not an IP address",
        ),
        (
            "[serve]\njoin = [\"a\"]\ncluster = [\"b\"]",
            "palisade.toml, line 3; palisade.toml, line 2: ",
        ),
    ] {
        let refused = settled(&[], &[], file).unwrap_err();
        assert!(refused.starts_with(why), "{file}\n{refused}\n{why}");
    }
}

#[test]
fn what_the_words_alone_do_wrong_is_not_blamed_on_the_file() {
    let refused = settled(&["--listen", "x"], &[], FILE).unwrap_err();
    assert!(
        refused.starts_with("words: error: invalid value 'x'"),
        "{refused}"
    );
    let refused = settled(&["--tls-cert", "x"], &[], FILE).unwrap_err();
    assert!(refused.contains("--tls-key"), "{refused}");
    // It may come from elsewhere.
    assert!(settled(&["--tls-cert", "x"], &[("PALISADE_TLS_KEY", "y")], FILE).is_ok());
}

#[test]
fn a_value_is_not_taken_for_a_switch() {
    let settings = settled(&[], &[("PALISADE_DATA", "true")], "").unwrap();
    assert_eq!(
        one(&settings, "data"),
        (vec!["true".into()], "PALISADE_DATA".into())
    );
}

#[test]
fn required_settings_may_come_from_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("p.toml");
    fs::write(
        &path,
        "[gateway]\nupstream = \"http://127.0.0.1:9\"\nroute = [\"/a=a\", \"/b=b\"]\n",
    )
    .unwrap();
    let words = |words: &[&str]| -> Vec<OsString> { words.iter().map(OsString::from).collect() };
    let file = path.to_str().unwrap();
    let settled = settle(
        &Cli::command(),
        words(&["palisade", "gateway", "--config", file]),
        &|_| None,
    );
    let (_, settings) = settled.unwrap();
    assert_eq!(one(&settings, "route").0, ["/a=a", "/b=b"]);
    let alone = settle(&Cli::command(), words(&["palisade", "gateway"]), &|_| None);
    assert!(
        matches!(alone, Err(CommandLineRefused::Words(error)) if error.to_string().contains("--upstream"))
    );
}

#[test]
fn the_usual_variable_names_the_collector_where_nothing_of_ours_does() {
    const USUAL: (&str, &str) = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://usual:4318");
    let file = "[serve]\notlp = \"http://file:4318\"\n";
    let of = |variables: &[(&str, &str)], file: &str| {
        one(&settled(&[], variables, file).unwrap(), "otlp")
    };
    let url = |host: &str| vec![format!("http://{host}:4318")];
    assert_eq!(of(&[], "[serve]\n").0, Vec::<String>::new());
    assert_eq!(of(&[USUAL], "[serve]\n"), (url("usual"), USUAL.0.into()));
    assert_eq!(of(&[USUAL], file), (url("file"), "line 2".into()));
    let ours = ("PALISADE_OTLP", "http://ours:4318");
    assert_eq!(of(&[USUAL, ours], file), (url("ours"), ours.0.into()));
}

#[test]
fn the_usual_variable_that_names_no_collector_is_passed_over_and_ours_is_refused() {
    const WRONG: &str = "user:secret@usual:4318";
    let usual = ("OTEL_EXPORTER_OTLP_ENDPOINT", WRONG);
    let settings = settled(&[], &[usual], "[serve]\n").unwrap();
    assert_eq!(one(&settings, "otlp").0, Vec::<String>::new());
    let said = super::passed_over(&|name| (name == usual.0).then(|| WRONG.into())).unwrap();
    for part in [usual.0, "usual:4318", "write http://HOST:PORT"] {
        assert!(said.contains(part), "{said}");
    }
    assert!(!said.contains("secret"), "{said}");
    let refused = settled(&[], &[("PALISADE_OTLP", WRONG)], "[serve]\n");
    assert!(refused.unwrap_err().contains("PALISADE_OTLP"));
}
