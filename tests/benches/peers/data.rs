//! Deterministic state directories.

use std::fs::{self, File};
use std::io::{BufWriter, Write as _};
use std::os::unix::fs::FileExt as _;
use std::path::Path;

/// A small generator (splitmix64): the same data on every machine.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut value = self.0;
        value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        value ^ (value >> 31)
    }

    /// Nearly normal, with this deviation: the sum of uniform numbers.
    #[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation)]
    fn normal(&mut self, deviation: f32) -> f32 {
        let bits = self.next();
        let sum: i32 = (0..4).map(|lane| i32::from((bits >> (16 * lane)) as u16 as i16)).sum();
        sum as f32 / 37_837.0 * deviation
    }
}

/// A trainer's directory: bf16 weights (1/5) and two fp32 optimizer moments (2/5 each), with the
/// statistics of trained ones: weights around zero, first moments far smaller, second ones positive.
pub(crate) fn weights(dir: &Path, bytes: u64) {
    let checkpoint = dir.join("checkpoint-100");
    fs::create_dir_all(&checkpoint).unwrap();
    let mut random = Random::new(1);
    write(&checkpoint.join("model.safetensors"), bytes / 5, |out| {
        let bf16 = (random.normal(0.02).to_bits() >> 16) as u16;
        out.extend_from_slice(&bf16.to_le_bytes());
    });
    write(&checkpoint.join("exp_avg.pt"), bytes / 5 * 2, |out| {
        out.extend_from_slice(&random.normal(1e-5).to_le_bytes());
    });
    write(&checkpoint.join("exp_avg_sq.pt"), bytes / 5 * 2, |out| {
        let root = random.normal(1e-5);
        out.extend_from_slice(&(root * root).to_le_bytes());
    });
    fs::write(checkpoint.join("trainer_state.json"), "{\"global_step\": 100}\n").unwrap();
    sync(dir);
}

fn write(path: &Path, bytes: u64, mut next: impl FnMut(&mut Vec<u8>)) {
    const BLOCK: usize = 1 << 20;
    let mut out = BufWriter::new(File::create(path).unwrap());
    let mut block = Vec::with_capacity(BLOCK + 8);
    let mut left = usize::try_from(bytes).unwrap();
    while left > 0 {
        block.clear();
        while block.len() < BLOCK.min(left) {
            next(&mut block);
        }
        let size = block.len().min(left);
        out.write_all(&block[..size]).unwrap();
        left -= size;
    }
    out.flush().unwrap();
}

/// What one save of a few layers changes: 64 MiB in the middle of one file, by rename.
pub(crate) fn touch_weights(dir: &Path, round: u64) {
    let path = dir.join("checkpoint-100/exp_avg.pt");
    let next = path.with_extension("tmp");
    fs::copy(&path, &next).unwrap();
    let file = File::options().write(true).open(&next).unwrap();
    let length = file.metadata().unwrap().len();
    let mut random = Random::new(round + 7);
    let region: Vec<u8> =
        (0..(64usize << 20) / 8).flat_map(|_| random.next().to_le_bytes()).collect();
    let region = &region[..region.len().min(usize::try_from(length / 4).unwrap())];
    file.write_all_at(region, length / 2).unwrap();
    file.sync_all().unwrap();
    fs::rename(&next, &path).unwrap();
    sync(dir);
}

/// Files of 1 to 16 KiB of text, a hundred a directory.
pub(crate) fn small_files(dir: &Path, count: u64) {
    let mut random = Random::new(2);
    for number in 0..count {
        write_small(dir, number, &mut random);
    }
    sync(dir);
}

/// Every hundredth file anew.
pub(crate) fn touch_small_files(dir: &Path, count: u64, round: u64) {
    let mut random = Random::new(round + 11);
    for number in (0..count).step_by(100) {
        write_small(dir, number, &mut random);
    }
    sync(dir);
}

fn write_small(dir: &Path, number: u64, random: &mut Random) {
    let folder = dir.join(format!("d{:04}", number / 100));
    fs::create_dir_all(&folder).unwrap();
    let size = 1024 + usize::try_from(random.next() % (15 * 1024)).unwrap();
    let mut text = String::with_capacity(size + 32);
    while text.len() < size {
        text.push_str(&format!(
            "{{\"id\":{},\"score\":{}}}\n",
            random.next() % 100_000,
            random.next() % 997
        ));
    }
    text.truncate(size);
    fs::write(folder.join(format!("f{number:06}.json")), text).unwrap();
}

fn sync(dir: &Path) {
    rustix::fs::syncfs(File::open(dir).unwrap()).unwrap();
}
