//! A server that this crate does not know.

use std::ops::Deref;
use std::path::Path;

use crate::instance::{Instance, Recipe};

/// A server that this crate does not know, such as one that was just built.
pub struct Program(Instance);

impl Program {
    /// Starts `program`. `arguments` returns its arguments for its folder and its port. The server is ready
    /// once `ready` returns true for its port; [`answers_with`](crate::answers_with) helps with that check.
    pub fn start(
        name: &'static str,
        program: &Path,
        arguments: impl Fn(&Path, u16) -> Vec<String> + Send + Sync + 'static,
        ready: fn(u16) -> bool,
    ) -> Program {
        let program = program.display().to_string();
        Program(Instance::start(Recipe {
            name,
            install: "build it",
            ports: 1,
            prepare: Box::new(|_| {}),
            command: Box::new(move |dir, ports| {
                let mut command = vec![program.clone()];
                command.extend(arguments(dir, ports[0]));
                command
            }),
            ready,
        }))
    }
}

impl Deref for Program {
    type Target = Instance;
    fn deref(&self) -> &Instance {
        &self.0
    }
}
