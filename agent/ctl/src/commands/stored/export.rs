//! `checkpoint export --store`.

use std::io::{BufWriter, Write as _};
use std::path::Path;

use nodus_checkpoint::export;

use super::{open, seq_or_newest};
use crate::args::Export;
use crate::commands::export::{Target, finish};
use crate::commands::work::watched;
use crate::console::Console;
use crate::error::Result;
use crate::exit::Exit;

/// Bytes that are written at once.
const BUFFER: usize = 1 << 20;

pub(super) fn export(args: &Export, store: &Path, console: &Console) -> Result<Exit> {
    let mut target = Target::new(args.file.as_deref(), console)?;
    let store = open(store, &args.job.0)?;
    let seq = seq_or_newest(&store, args.seq)?;
    let what = format!("job/{} checkpoint {seq}", store.job());
    let target = watched(console, &what, move |control| {
        let mut out = BufWriter::with_capacity(BUFFER, &mut target);
        export::export(&store, seq, &mut out, control)?;
        let flushed = out.flush();
        drop(out);
        flushed.map_err(|source| target.cannot("write to", source))?;
        Ok(target)
    })?;
    finish(target, console)
}
