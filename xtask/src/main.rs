//! The project's own chores, behind `cargo xtask`.
//!
//! ```text
//! check ── format · tidy · words · links · packages · crates · deny · advisories · clippy · features · doc      reads only, reports every failure at the end
//! test  ── prerequisites → build → tests and examples → those that need the machine → clients, packages, instructions of the hot path → one summary
//! package ── the Debian package, and its test on a copy of the machine
//! release ── everything that is published, in one folder, from a clean tree
//! semver ── the public interface of the crates, compared with the last release
//! docs  ── the pages of docs/ as a book
//! lab   ── every proof of the lab at its full size
//! bench ── peers (beside other systems) · instructions (against the committed baseline)
//! ```

mod advisories;
mod bench;
mod check;
mod dependencies;
mod docs;
mod features;
mod lab;
mod loaded;
mod mutation;
mod package;
mod prerequisites;
mod programs;
mod release;
mod shell;

mod suite;
mod tidy;
mod tree;

use std::process::ExitCode;

const USAGE: &str = "\
usage: cargo xtask check [--only STEP[,STEP…]]    the gate: reads everything, changes nothing; --without STEP: all others
       cargo xtask test [--quick] [-- FILTER…]    build, then every test; --quick runs the unit tests only
       cargo xtask test --loaded [ROUNDS]         the tests that depend on real time, 10 rounds beside two busy loops for each core
       cargo xtask lab                            the lab's full battery, some hours
       cargo xtask bench peers [FLAG…]            Palisade beside other systems, in one run; --help lists the flags
       cargo xtask bench members|failover [FLAG…] what callers see when nodes come and go, or the leader is killed
       cargo xtask bench instructions [--bless]   the hot path against its baseline; --bless writes it
       cargo xtask package deb|all                the Debian package, into target/dist; with its parts and checksums
       cargo xtask package test                   installs, upgrades and purges it on a copy of this machine, as root
       cargo xtask package image|kubernetes       builds the container image, or reads the manifests, and runs what they start
       cargo xtask package crates                 packs what is published, and builds each crate from its package
       cargo xtask release VERSION                all packages of all languages into one folder (RELEASING.md)
       cargo xtask semver                         compares the crates' public interface with the last release
       cargo xtask docs                           builds the pages of docs/ as a book with a search, into target/book
";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let outcome = match words.as_slice() {
        ["check", rest @ ..] => check::Plan::parse(rest).map(|plan| plan.run()),
        ["test", "--loaded", rest @ ..] => loaded::Plan::parse(rest).map(|plan| plan.run()),
        ["test", rest @ ..] => suite::Plan::parse(rest).map(|plan| plan.run()),
        ["bench", rest @ ..] => bench::Plan::parse(rest).map(|plan| plan.run()),
        ["package", rest @ ..] => package::Plan::parse(rest).map(|plan| plan.run()),
        ["release", rest @ ..] => release::Plan::parse(rest).map(|plan| plan.run()),
        ["semver"] => Ok(release::interface::check()),
        ["docs"] => Ok(docs::build()),
        ["lab"] => Ok(lab::battery()),
        ["help" | "-h" | "--help"] => {
            print!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        [] => Err("name a chore".to_owned()),
        [other, ..] => Err(format!("no chore is called `{other}`")),
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(mistake) => {
            eprint!("xtask: {mistake}\n{USAGE}");
            ExitCode::from(2)
        }
    }
}
