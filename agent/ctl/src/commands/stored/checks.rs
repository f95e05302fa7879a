//! `checkpoint verify --store`: reads all that a checkpoint needs; the store is only read.

use std::num::NonZeroUsize;
use std::path::Path;

use nodus_checkpoint::store::Stored;
use nodus_checkpoint::verify::{self, VerifyReport};
use nodus_protocol::control::VerifyDone;

use super::{absent, open};
use crate::args::Verify;
use crate::commands::checkpoint::checked;
use crate::commands::work::watched;
use crate::console::Console;
use crate::error::Result;
use crate::exit::Exit;

pub(super) fn verify(args: &Verify, store: &Path, console: &Console) -> Result<Exit> {
    let store = open(store, &args.job.0)?;
    let seqs = match args.seq {
        Some(seq) => vec![seq],
        None => store.list()?.iter().map(Stored::seq).collect(),
    };
    if seqs.is_empty() {
        return Err(absent(&store, None));
    }
    let threads = std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
    let found = watched(console, &format!("verifying job/{}", store.job()), move |control| {
        let one = |seq| Ok(done(&verify::verify(&store, seq, None, threads, control)?));
        seqs.into_iter().map(one).collect::<Result<Vec<VerifyDone>>>()
    })?;
    checked(&found, console)
}

fn done(report: &VerifyReport) -> VerifyDone {
    VerifyDone {
        seq: report.seq,
        bytes: report.bytes,
        problems: report.problems.iter().map(ToString::to_string).collect(),
    }
}
