//! What happens to a job, as server-sent events.

use std::time::Duration;

use axum::extract::State;
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use jiff::Timestamp;
use nodus_protocol::JobName;
use nodus_protocol::control::{JobEvent, TimedEvent};
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;
use tokio_util::sync::CancellationToken;

use super::Api;
use super::problem::Failure;
use super::request::{At, Who};
use super::stream::{self, Pieces, Sender};

/// A comment as often as this shows each side that the other is there.
const ALIVE: Duration = Duration::from_secs(15);

pub(super) async fn events(
    State(api): State<Api>,
    Who(caller): Who,
    At(name): At<JobName>,
) -> Result<Response, Failure> {
    let events = api.engine.events(&caller, &name)?;
    let (sender, pieces) = stream::channel();
    api.tasks.spawn(pass_on(events, sender, api.stop.clone()));
    // The comment shows that whatever happens from here on will come.
    let mut response =
        Pieces::after(Bytes::from_static(b": from now on\n\n"), pieces).into_response();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    Ok(response)
}

/// Until the job is removed, the client goes away or the agent stops.
async fn pass_on(mut events: Receiver<TimedEvent>, client: Sender, stop: CancellationToken) {
    loop {
        let next = tokio::select! {
            () = stop.cancelled() => return,
            () = client.closed() => return,
            next = tokio::time::timeout(ALIVE, events.recv()) => next,
        };
        let piece = match next {
            Err(_) => Bytes::from_static(b":\n\n"),
            Ok(Ok(event)) => encode(&event),
            Ok(Err(RecvError::Lagged(missed))) => encode(&missing(missed)),
            Ok(Err(RecvError::Closed)) => return,
        };
        if client.send(Ok(piece)).await.is_err() {
            return;
        }
    }
}

/// Told to a client that did not read in time.
fn missing(missed: u64) -> TimedEvent {
    let message = format!("{missed} events were left out: they were not read in time");
    TimedEvent { at: Timestamp::now(), event: JobEvent::Warning { message } }
}

fn encode(event: &TimedEvent) -> Bytes {
    let data = serde_json::to_string(event).expect("strings, numbers and times only");
    Bytes::from(format!("data: {data}\n\n"))
}

#[cfg(test)]
mod tests {
    use tokio::sync::broadcast;
    use tokio::time::timeout;

    use super::*;

    const SOON: Duration = Duration::from_secs(10);

    fn progress(completed: u64) -> TimedEvent {
        let progress = nodus_protocol::event::Progress { completed, total: None };
        TimedEvent { at: Timestamp::UNIX_EPOCH, event: JobEvent::Progress(progress) }
    }

    #[tokio::test]
    async fn events_come_in_order_and_a_gap_is_told() {
        let (happen, events) = broadcast::channel(4);
        for completed in 0..6 {
            happen.send(progress(completed)).unwrap();
        }
        let (sender, mut pieces) = stream::channel();
        let task = tokio::spawn(pass_on(events, sender, CancellationToken::new()));
        let mut texts = Vec::new();
        for _ in 0..5 {
            let piece = timeout(SOON, pieces.recv()).await.unwrap().unwrap().unwrap();
            texts.push(String::from_utf8(piece.to_vec()).unwrap());
        }
        assert!(texts[0].contains("2 events were left out"), "{}", texts[0]);
        assert!(texts[1].starts_with("data: {") && texts[1].ends_with("}\n\n"), "{}", texts[1]);
        assert!(texts[1].contains("\"completed\":2") && texts[4].contains("\"completed\":5"));
        drop(happen);
        timeout(SOON, task).await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn a_client_that_goes_away_and_an_agent_that_stops_end_it() {
        let (_happen, events) = broadcast::channel(4);
        let again = events.resubscribe();
        let (sender, pieces) = stream::channel();
        drop(pieces);
        timeout(SOON, pass_on(events, sender, CancellationToken::new())).await.unwrap();
        let (sender, _pieces) = stream::channel();
        let stop = CancellationToken::new();
        stop.cancel();
        timeout(SOON, pass_on(again, sender, stop)).await.unwrap();
    }
}
