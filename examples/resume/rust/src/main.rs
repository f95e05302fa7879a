//! A training loop that keeps its progress across suspends, crashes and lost capacity.
//!
//! All it has to do for Nodus is in two places: [`save`] writes the state so that it is whole at
//! every moment, and the loop saves and answers when Nodus asks. Outside Nodus nobody asks, and the
//! same program runs as it is.

use std::error::Error;
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::Duration;
use std::{env, fs, thread};

use serde_json::{Value, json};

/// Steps between the saves that nobody asks for.
const SAVE_EVERY: u64 = 20;
/// The agent may be restarted or upgraded under a running program.
const RECONNECT: Duration = Duration::from_secs(1);

/// A checkpoint that waits for this program, and the connection on which it asked.
struct Request {
    seq: u64,
    connection: UnixStream,
}

fn main() -> Result<(), Box<dyn Error>> {
    let steps: u64 = variable("STEPS", "120").parse()?;
    let pause = Duration::try_from_secs_f64(variable("STEP_SECONDS", "1").parse()?)?;
    let state = PathBuf::from(variable("NODUS_STATE_DIR", "/nodus/state")).join("progress.json");

    let start = load(&state)?;
    let requests = subscribe();
    for step in start + 1..=steps {
        thread::sleep(pause); // stands for one step of work
        println!("step {step}/{steps}");
        let waiting: Vec<Request> = requests.try_iter().collect();
        if !waiting.is_empty() || step % SAVE_EVERY == 0 {
            save(&state, step)?;
        }
        waiting.iter().for_each(acknowledge);
    }
    save(&state, steps)?;
    println!("training complete");
    Ok(())
}

fn variable(name: &str, default: &str) -> String {
    env::var(name).unwrap_or_else(|_| default.to_owned())
}

/// The last step that was saved; 0 on a first start.
fn load(state: &Path) -> Result<u64, Box<dyn Error>> {
    let text = match fs::read_to_string(state) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(0),
        Err(error) => return Err(error.into()),
    };
    let saved: Value = serde_json::from_str(&text)?;
    let step = saved["step"].as_u64().ok_or("progress.json has no step")?;
    println!("resumed from step {step}");
    Ok(step)
}

/// Writes beside the old state and renames over it: a half-written file is never in place.
fn save(state: &Path, step: u64) -> io::Result<()> {
    if let Some(directory) = state.parent() {
        fs::create_dir_all(directory)?;
    }
    let staged = state.with_extension("tmp");
    fs::write(&staged, json!({ "step": step }).to_string())?;
    fs::rename(&staged, state)
}

/// Asks to be told before each checkpoint, for as long as the program runs.
fn subscribe() -> Receiver<Request> {
    let (sender, receiver) = mpsc::channel();
    let socket = PathBuf::from(variable("NODUS_EVENTS_SOCKET", "/run/nodus/events.sock"));
    thread::spawn(move || {
        while socket.exists() || env::var_os("NODUS_ATTEMPT").is_some() {
            // Whatever ended the connection, the next one is as good as new.
            let _ = listen(&socket, &sender);
            thread::sleep(RECONNECT);
        }
    });
    receiver
}

/// One connection: subscribes, and passes each request to the training loop.
fn listen(socket: &Path, requests: &Sender<Request>) -> io::Result<()> {
    let mut connection = UnixStream::connect(socket)?;
    send(&mut connection, &json!({ "type": "checkpoint.subscribe" }))?;
    for line in BufReader::new(connection.try_clone()?).lines() {
        let message: Value = serde_json::from_str(&line?)?;
        if let ("checkpoint.request", Some(seq)) =
            (message["type"].as_str().unwrap_or_default(), message["seq"].as_u64())
        {
            let request = Request { seq, connection: connection.try_clone()? };
            if requests.send(request).is_err() {
                break; // the loop is done
            }
        }
    }
    Ok(())
}

/// Tells Nodus that the files in the state directory are complete.
fn acknowledge(request: &Request) {
    let ack = json!({ "type": "checkpoint.ack", "seq": request.seq });
    // If the agent went away meanwhile, it asks again once the program is connected again.
    let _ = send(&mut &request.connection, &ack);
}

/// One message: one JSON object on a line.
fn send(connection: &mut impl Write, message: &Value) -> io::Result<()> {
    connection.write_all(format!("{message}\n").as_bytes())
}
