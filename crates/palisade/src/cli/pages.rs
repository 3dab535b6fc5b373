//! Shell completions and man pages, made from what clap knows.

use std::io::{self, Write as _};
use std::path::Path;

use clap::CommandFactory as _;

use super::Cli;
use super::args::{CompletionsArgs, ManArgs};
use super::failure::Failure;

pub(super) fn completions(args: &CompletionsArgs) -> Result<(), Failure> {
    let mut text = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "palisade", &mut text);
    print(&text)
}

pub(super) fn man(args: &ManArgs) -> Result<(), Failure> {
    match &args.dir {
        Some(dir) => write_all(dir),
        None => {
            let mut page = Vec::new();
            clap_mangen::Man::new(Cli::command()).render(&mut page)?;
            print(&page)
        }
    }
}

fn write_all(dir: &Path) -> Result<(), Failure> {
    let written =
        std::fs::create_dir_all(dir).and_then(|()| clap_mangen::generate_to(Cli::command(), dir));
    written.map_err(|error| Failure::local(format!("{}: {error}", dir.display())))
}

fn print(page: &[u8]) -> Result<(), Failure> {
    match io::stdout().write_all(page) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(Failure::local(format!("standard output: {error}")))
        }
        _ => Ok(()),
    }
}
