//! `palisade run` on a terminal: the job gets ctrl-C, ctrl-Z and the input, and the terminal comes back.

use std::fs::{File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command};
use std::sync::{Arc, Mutex};

use crate::common::{Server, until};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

/// A shell on a terminal of its own.
struct Session {
    keyboard: File,
    screen: Arc<Mutex<String>>,
    shell: Child,
}

impl Session {
    /// `flags` are the shell's: `-im` has job control, `-c` does not.
    fn start(server: &Server, flags: &[&str]) -> Session {
        let master =
            openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let name = ptsname(&master, Vec::new()).unwrap().into_string().unwrap();
        let terminal = || {
            OpenOptions::new()
                .read(true)
                .write(true)
                .open(&name)
                .unwrap()
        };
        // As a login would start it: a runner in the background ignores ctrl-C, and its tests would inherit that.
        let mut command = Command::new("env");
        command
            .args(["--default-signal", "sh"])
            .args(flags)
            .env("PALISADE", env!("CARGO_BIN_EXE_palisade"))
            .env("PALISADE_AUTHORITY", &server.url);
        command
            .env("PS1", "")
            .env_remove("ENV")
            .current_dir(server.dir.path());
        command
            .stdin(terminal())
            .stdout(terminal())
            .stderr(terminal());
        // SAFETY: both are plain system calls, as is allowed between fork and exec.
        unsafe {
            command.pre_exec(|| {
                rustix::process::setsid()?;
                rustix::process::ioctl_tiocsctty(rustix::stdio::stdin())?;
                Ok(())
            })
        };
        let shell = command.spawn().unwrap();
        let keyboard = File::from(master);
        let screen = Arc::new(Mutex::new(String::new()));
        let (mut reader, shown) = (keyboard.try_clone().unwrap(), Arc::clone(&screen));
        std::thread::spawn(move || {
            let mut bytes = [0; 4_096];
            // Reading fails when the last program has closed the terminal.
            while let Ok(read @ 1..) = reader.read(&mut bytes) {
                shown
                    .lock()
                    .unwrap()
                    .push_str(&String::from_utf8_lossy(&bytes[..read]));
            }
        });
        Session {
            keyboard,
            screen,
            shell,
        }
    }

    fn press(&mut self, keys: &str) {
        self.keyboard.write_all(keys.as_bytes()).unwrap();
    }

    fn shows(&self, text: &str) {
        let seen = || self.screen.lock().unwrap().clone();
        let give_up = crate::common::now().after(crate::common::SOON.into());
        until("the screen", || {
            seen().contains(text) || crate::common::now() >= give_up
        });
        assert!(
            seen().contains(text),
            "{text} is not on the screen:\n{}\n{}",
            seen(),
            self.processes()
        );
    }

    /// The processes of this terminal, for a message: groups, states, and signals that are pending, blocked, ignored.
    fn processes(&self) -> String {
        let columns = "pid,ppid,pgid,tpgid,stat,wchan,pending,blocked,ignored,caught,args";
        let listed = Command::new("ps")
            .args(["-ww", "-o", columns, "--sid"])
            .arg(self.shell.id().to_string())
            .output();
        listed.map_or_else(
            |error| error.to_string(),
            |output| crate::common::text(&output.stdout),
        )
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let _ = self.shell.kill();
        let _ = self.shell.wait();
    }
}

#[test]
fn ctrl_c_is_for_the_job_and_the_terminal_comes_back() {
    let server = Server::start();
    // The shell must not exec the last command: it would lose a signal that arrives during the exec. Its trap lets it go on.
    let script = r#"trap : INT; "$PALISADE" run job -- sh -c 'echo up; read line'; echo "ended $?"; read line; echo "read $line""#;
    let mut session = Session::start(&server, &["-c", script]);
    session.shows("up");
    session.press("\x03");
    session.shows("ended 130");
    session.press("on\n");
    session.shows("read on");
}

/// As it would without palisade. The control is a job that handles ctrl-C, after which the loop goes on.
#[test]
fn ctrl_c_ends_the_loop_of_a_shell_if_the_job_died_of_it() {
    let server = Server::start();
    for (job, goes_on) in [("", false), ("trap \"exit 0\" INT; ", true)] {
        for flags in [&["-c"][..], &["-imc"]] {
            let script = format!(
                r#"for turn in 1 2; do "$PALISADE" run job -- sh -c '{job}echo up in $0; read line' $turn; done; echo all" over""#
            );
            let mut session = Session::start(&server, &[flags, &[&script]].concat());
            session.shows("up in 1");
            session.press("\x03");
            if goes_on {
                session.shows("up in 2");
                session.press("\x03");
                session.shows("all over");
            } else {
                // An interactive one reads its next command.
                if flags.contains(&"-imc") {
                    // dash drops the first character after an interrupt.
                    session.press("\necho the shell\" is back\"\n");
                    session.shows("the shell is back");
                } else {
                    until("the end of the shell", || {
                        session.shell.try_wait().unwrap().is_some()
                    })
                }
                let screen = session.screen.lock().unwrap().clone();
                assert!(
                    !screen.contains("up in 2") && !screen.contains("all over"),
                    "{screen}"
                );
            }
            until("the lock to be free", || {
                server.show("job")["holder"].is_null()
            });
        }
    }
}

#[test]
fn an_interactive_job_reads_from_the_terminal() {
    let server = Server::start();
    let script = r#""$PALISADE" run job -- sh -c 'echo up; read line; echo "job read $line"'; echo "ended $?""#;
    let mut session = Session::start(&server, &["-c", script]);
    session.shows("up");
    session.press("words\n");
    session.shows("job read words");
    session.shows("ended 0");
}

#[test]
fn a_job_in_a_pipeline_leaves_the_terminal_to_the_others() {
    let server = Server::start();
    let script = r#""$PALISADE" run job -- echo done | sh -c 'read line < /dev/tty; echo "the other read $line"; cat'; echo "all over""#;
    let mut session = Session::start(&server, &["-c", script]);
    session.press("words\n");
    session.shows("the other read words");
    session.shows("done");
    session.shows("all over");
}

#[test]
fn ctrl_z_stops_both_and_fg_continues_both() {
    let server = Server::start();
    let mut session = Session::start(&server, &["-im"]);
    session.press("\"$PALISADE\" run job --ttl 1h -- sh -c 'echo $$ >> pids; read line; echo \"job read $line\"'\n");
    let job = server.pids("pids", 1)[0];
    session.press("\x1a");
    until("the job to stop", || crate::common::is_stopped(job));
    session.press("echo the shell\" is back\"\n");
    session.shows("the shell is back");
    session.press("fg\n");
    until("the job to continue", || !crate::common::is_stopped(job));
    session.press("words\n");
    session.shows("job read words");
    session.press("echo all\" over\"\n");
    session.shows("all over");
}

/// The shell waits for palisade, and does not see its job.
#[test]
fn a_frozen_job_keeps_the_terminal_and_goes_on_with_it() {
    let server = Server::start();
    let script = r#""$PALISADE" run job --ttl 1500ms --on-deadline freeze -- sh -c 'echo $$ >> pids; read line; echo "job read $line"'; echo "ended $?""#;
    let mut session = Session::start(&server, &["-imc", script]);
    let job = server.pids("pids", 1)[0];
    crate::common::stop(server.pid());
    until("the job to be frozen", || crate::common::is_stopped(job));
    session.shows("The command is frozen");
    crate::common::send(server.pid(), rustix::process::Signal::CONT);
    until("the job to go on", || !crate::common::is_stopped(job));
    session.press("words\n");
    session.shows("job read words");
    session.shows("ended 0");
}

/// A job whose standard input is a pipe, on a shell's terminal; afterwards the shell reads from it again.
fn behind_a_pipe(server: &Server, job: &str) -> Session {
    let script =
        format!(r#"{job}; echo "ended $?"; read line < /dev/tty; echo "the shell read $line""#);
    Session::start(server, &["-c", &script])
}

fn the_terminal_came_back(session: &mut Session) {
    session.shows("ended 0");
    session.press("again\n");
    session.shows("the shell read again");
}

#[test]
fn a_job_behind_a_pipe_gets_the_terminal_when_it_asks_there() {
    let server = Server::start();
    let job =
        r#"echo y | "$PALISADE" run job -- sh -c 'read line < /dev/tty; echo "job read $line"'"#;
    let mut session = behind_a_pipe(&server, job);
    session.press("words\n");
    session.shows("job read words");
    the_terminal_came_back(&mut session);
}

/// As sudo asks: without echo, which a program in the background may not switch off either.
#[test]
fn a_job_behind_a_pipe_asks_for_a_password() {
    let server = Server::start();
    let asks = r#"stty -echo < /dev/tty; printf "Password: " > /dev/tty; read p < /dev/tty; stty echo < /dev/tty"#;
    let job =
        format!(r#"echo y | "$PALISADE" run job -- sh -c '{asks}; echo "it has ${{#p}} letters"'"#);
    let mut session = behind_a_pipe(&server, &job);
    session.shows("Password: ");
    session.press("words\n");
    session.shows("it has 5 letters");
    the_terminal_came_back(&mut session);
}

/// The control: with SIGTTIN ignored the job's read fails, and nothing stops it.
#[test]
fn a_job_whose_output_is_taken_reads_from_the_terminal_where_bash_ignores_ttin() {
    let server = Server::start();
    // As `$(…)` in an interactive bash.
    let script = r#"trap "" TTIN; told=$("$PALISADE" run job -- sh -c 'read line </dev/tty; echo "got $line"'); echo "<$told>""#;
    let mut session = Session::start(&server, &["-c", script]);
    session.press("hello\n");
    session.shows("<got hello>");
}

#[test]
fn openssh_asks_for_a_passphrase_behind_a_pipe() {
    let server = Server::start();
    let key = r#"ssh-keygen -q -t ed25519 -N words -f key"#;
    let job = format!(r#"{key} && echo y | "$PALISADE" run job -- ssh-keygen -y -f key"#);
    let mut session = behind_a_pipe(&server, &job);
    session.shows("passphrase");
    session.press("words\n");
    session.shows("ssh-ed25519 ");
    the_terminal_came_back(&mut session);
}

#[test]
fn less_and_vim_show_what_comes_through_a_pipe() {
    for (program, shown, quit) in [
        ("less", "line 7", "q"),
        ("vim -u NONE -N -", "line 7", ":q!\r"),
    ] {
        let server = Server::start();
        let job = format!(
            r#"export TERM=xterm; seq -f "line %g" 300 | "$PALISADE" run job -- {program}"#
        );
        let mut session = behind_a_pipe(&server, &job);
        session.shows(shown);
        session.press(quit);
        the_terminal_came_back(&mut session);
    }
}

#[test]
fn a_run_inside_a_run_hands_the_terminal_on() {
    let server = Server::start();
    let job = r#"echo y | "$PALISADE" run one -- "$PALISADE" run two -- sh -c 'read line < /dev/tty; echo "job read $line"'"#;
    let mut session = behind_a_pipe(&server, job);
    session.press("words\n");
    session.shows("job read words");
    the_terminal_came_back(&mut session);
}

#[test]
fn a_job_in_the_background_stops_with_palisade_until_it_has_the_terminal() {
    let server = Server::start();
    let mut session = Session::start(&server, &["-im"]);
    session.press("\"$PALISADE\" run job --ttl 1h -- sh -c 'echo $$ >> pids; read line < /dev/tty; echo \"job read $line\"' &\n");
    let job = server.pids("pids", 1)[0];
    let palisade = crate::common::parent(job);
    until("both to stop", || {
        crate::common::is_stopped(job) && crate::common::is_stopped(palisade)
    });
    session.press("echo the shell\" is here\"\n");
    session.shows("the shell is here");
    session.press("fg\n");
    until("the job to continue", || !crate::common::is_stopped(job));
    session.press("words\n");
    session.shows("job read words");
    session.press("echo all\" over\"\n");
    session.shows("all over");
}

/// Its shell has ended, so nobody could ever put it into the foreground: without an end it would hold the lock for ever.
#[test]
fn a_job_that_can_never_get_the_terminal_is_ended_and_the_lock_released() {
    let server = Server::start();
    let job = r#""$PALISADE" run job --ttl 1h -- sh -c 'read line < /dev/tty' 2> said"#;
    // A group of its own in the background, whose leader ends.
    let script = format!("set -m; (set +m; {job} & ) & wait; echo in\" front\"; read line");
    let session = Session::start(&server, &["-c", &script]);
    session.shows("in front");
    let said = || std::fs::read_to_string(server.file("said")).unwrap_or_default();
    until("the warning", || said().contains("ended with SIGHUP"));
    until("the release", || server.show("job")["holder"].is_null());
}

/// Its group began outside of its namespace, so nothing could give the terminal back to it afterwards.
#[test]
fn a_job_in_a_namespace_whose_group_is_outside_is_told_that_it_gets_no_terminal() {
    let server = Server::start();
    let job = r#""$PALISADE" run job --ttl 1h -- sh -c 'read line < /dev/tty'"#;
    let apart = "unshare --pid --fork --mount-proc";
    let script =
        format!("{apart} {job} 2> said; echo in\" front\"; read line; echo \"read $line\"");
    let mut session = Session::start(&server, &["-c", &script]);
    session.shows("in front");
    let said = std::fs::read_to_string(server.file("said")).unwrap();
    assert!(said.contains("ended with SIGHUP"), "{said}");
    until("the release", || server.show("job")["holder"].is_null());
    session.press("on\n");
    session.shows("read on");
}

/// There the numbers of processes are those of others.
#[test]
fn a_proc_of_another_namespace_is_not_read() {
    let server = Server::start();
    let script = r#"unshare --pid --fork "$PALISADE" run job -- sh -c 'sleep 300 & exit 3'; echo "ended $?""#;
    let session = Session::start(&server, &["-c", script]);
    session.shows("ended 3");
    assert!(server.show("job")["holder"].is_null());
}

/// As the first process of a container, which no signal from inside can stop.
#[test]
fn a_job_of_process_1_that_is_stopped_goes_on() {
    let server = Server::start();
    let job =
        r#""$PALISADE" run job -- sh -c 'while read line; do echo "got $line"; done; exit 3'"#;
    let script =
        format!("unshare --pid --fork --mount-proc setsid --ctty {job}; echo \"ended $?\"");
    let mut session = Session::start(&server, &["-c", &script]);
    session.press("one\n");
    session.shows("got one");
    session.press("\x1a");
    session.shows("the command was stopped and is continued");
    session.press("two\n");
    session.shows("got two");
    session.press("\x04");
    session.shows("ended 3");
    until("the release", || server.show("job")["holder"].is_null());
}
