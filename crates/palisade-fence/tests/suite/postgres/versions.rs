//! The oldest and the newest supported server: repeats the tests of version differences.

use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;

/// The modules whose tests run the most SQL of the fence.
const MODULES: [&str; 5] = [
    "postgres::vectors",
    "postgres::functions",
    "postgres::doors",
    "postgres::sticky",
    "postgres::transact",
];

#[test]
fn the_oldest_and_the_newest_server_pass_the_same_tests() {
    for version in ["14", "18"] {
        let programs = palisade_testbed::postgres_programs(version);
        assert!(
            programs.exists(),
            "run `cargo xtask test`, which installs PostgreSQL {version} of xtask/tools/postgres"
        );
        // The server's user may not reach the folder of the build.
        let place = tempfile::tempdir().unwrap();
        let open = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(place.path(), open).unwrap();
        let mut copy = Command::new("cp");
        copy.arg("-a")
            .arg(programs.parent().unwrap())
            .arg(place.path());
        assert!(copy.status().unwrap().success());
        let mut tests = Command::new(std::env::current_exe().unwrap());
        tests
            .args(MODULES)
            .env("PALISADE_POSTGRES", place.path().join("native/bin"));
        let output = tests.output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        let passed = output.status.success() && !said.contains("running 0 tests");
        assert!(passed, "PostgreSQL {version}: {said}");
    }
}
