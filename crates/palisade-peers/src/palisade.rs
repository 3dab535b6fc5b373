//! The Palisade server that was built beside this program.

use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use crate::lane::Error;

/// It ends with its value.
pub(crate) struct Server {
    process: Child,
    data: PathBuf,
    url: String,
}

impl Server {
    pub(crate) fn start() -> Result<Server, Error> {
        let program = std::env::current_exe()?.with_file_name("palisade");
        if !program.exists() {
            return Err("the server is not built: cargo build --release".into());
        }
        let data = std::env::temp_dir().join(format!("palisade-peers-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&data);
        let mut process = Command::new(program)
            .args(["serve", "--json", "--listen", "127.0.0.1:0", "--data"])
            .arg(&data)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?;
        let stdout = process.stdout.take().ok_or("no output")?;
        let mut line = String::new();
        BufReader::new(stdout).read_line(&mut line)?;
        let said: serde_json::Value = serde_json::from_str(&line)?;
        let url = said["url"].as_str().ok_or("the server said nothing")?;
        Ok(Server {
            url: url.to_owned(),
            process,
            data,
        })
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = std::fs::remove_dir_all(&self.data);
    }
}
