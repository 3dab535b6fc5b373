//! Any other server.

use std::ops::Deref;
use std::path::Path;

use crate::instance::{Instance, Recipe};

/// A server this crate knows nothing of, such as one that was built just now.
pub struct Program(Instance);

impl Program {
    /// Starts `program` with the arguments that `arguments` makes of its folder and its port. It serves
    /// once `ready` says so of its port; [`says`](crate::says) helps to find out.
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
