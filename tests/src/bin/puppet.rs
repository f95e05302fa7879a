//! A program whose every move a test decides, so that a test can be a training program.
//!
//! It connects to the socket named in `PUPPET_SOCKET`, says in one JSON line who it is, and does
//! what it is told, one JSON line a command, each answered by `ok` or by what went wrong:
//! `connect` (to the events socket, and hand the connection over), `print`, `write`, `spawn`
//! (another puppet as its child) and `exit`.

#![allow(clippy::print_stdout, reason = "printing is one of the things it is told to do")]

use std::collections::BTreeMap;
use std::error::Error;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::{env, fs, process};

use nodus_tests::{PUPPET_SOCKET, send_fd};
use serde_json::{Value, json};

fn main() -> Result<(), Box<dyn Error>> {
    let path = env::var(PUPPET_SOCKET)?;
    let mut control = UnixStream::connect(path)?;
    writeln!(control, "{}", introduction())?;
    let commands = BufReader::new(control.try_clone()?);
    for command in commands.lines() {
        let command: Value = serde_json::from_str(&command?)?;
        match obey(&mut control, &command) {
            Ok(()) => writeln!(control, "ok")?,
            Err(error) => writeln!(control, "{error}")?,
        }
    }
    Ok(())
}

/// Who this is, with what Nodus put into its environment.
fn introduction() -> Value {
    let env: BTreeMap<String, String> =
        env::vars().filter(|(name, _)| name.starts_with("NODUS_")).collect();
    let directory = env::current_dir().map(|dir| dir.display().to_string()).unwrap_or_default();
    json!({ "pid": process::id(), "env": env, "directory": directory })
}

fn obey(control: &mut UnixStream, command: &Value) -> Result<(), Box<dyn Error>> {
    let text = |name: &str| command[name].as_str().ok_or(format!("the command has no {name}"));
    match text("do")? {
        "connect" => {
            let events = UnixStream::connect(text("path")?)?;
            send_fd(control, &events)?;
        }
        "print" => println!("{}", text("line")?),
        "write" => {
            let path = text("path")?;
            fs::write(format!("{path}.tmp"), text("content")?)?;
            fs::rename(format!("{path}.tmp"), path)?;
        }
        "spawn" => {
            // Its end is for whoever ends the job to see to.
            let _child = process::Command::new(env::current_exe()?).spawn()?;
        }
        "exit" => {
            let code = command["code"].as_i64().ok_or("the command has no code")?;
            process::exit(i32::try_from(code)?);
        }
        other => return Err(format!("no command {other}").into()),
    }
    Ok(())
}
