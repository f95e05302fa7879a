//! The shape of one configuration file: every key optional, every value checked where it stands.

use std::num::NonZeroU32;
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use nodus_protocol::units::{self, ByteSize};
use serde::de::Error;
use serde::{Deserialize, Deserializer};

/// How likely the node's capacity is taken away, before it was seen to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Capacity {
    /// Spot, preemptible: taken back at short notice.
    Spot,
    /// Only lost to failures.
    OnDemand,
    /// Nobody said.
    Unknown,
}

/// How many threads copy, compress and hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Threads {
    /// Half of the processors that the agent may use, at least one.
    Auto,
    /// This many, at most the processors that the agent may use.
    Count(NonZeroU32),
}

/// Declares a section with its `over`, so that no key can be forgotten in the merge.
macro_rules! section {
    ($name:ident { $($(#[$attribute:meta])* $key:ident: $type:ty,)* }) => {
        #[derive(Debug, Default, Deserialize)]
        #[serde(deny_unknown_fields)]
        pub(super) struct $name {
            $($(#[$attribute])* #[serde(default)] pub(super) $key: Option<$type>,)*
        }

        impl $name {
            /// Its own values, and those of `earlier` where it has none.
            fn over(self, earlier: Self) -> Self {
                Self { $($key: self.$key.or(earlier.$key),)* }
            }

            #[cfg(test)]
            pub(super) const KEYS: &[&str] = &[$(stringify!($key),)*];
        }
    };
}

/// One file.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Fragment {
    pub(super) agent: AgentSection,
    pub(super) store: StoreSection,
    pub(super) cadence: CadenceSection,
    pub(super) limits: LimitsSection,
}

impl Fragment {
    pub(super) fn over(self, earlier: Self) -> Self {
        Self {
            agent: self.agent.over(earlier.agent),
            store: self.store.over(earlier.store),
            cadence: self.cadence.over(earlier.cadence),
            limits: self.limits.over(earlier.limits),
        }
    }
}

section!(AgentSection {
    #[serde(deserialize_with = "directory")]
    runtime_dir: PathBuf,
    #[serde(deserialize_with = "directory")]
    state_dir: PathBuf,
    #[serde(deserialize_with = "log_filter")]
    log: String,
    #[serde(deserialize_with = "threads")]
    threads: Threads,
    #[serde(deserialize_with = "up_to::<3600, _>")]
    stop_timeout: Duration,
    #[serde(deserialize_with = "up_to::<86400, _>")]
    suspend_timeout: Duration,
    operators: String,
    #[serde(deserialize_with = "mode")]
    socket_mode: u32,
});

section!(StoreSection {
    #[serde(deserialize_with = "store_directory")]
    url: PathBuf,
});

section!(CadenceSection {
    capacity: Capacity,
    #[serde(deserialize_with = "up_to::<MAX_MEAN, _>")]
    spot_mean: Duration,
    #[serde(deserialize_with = "up_to::<MAX_MEAN, _>")]
    on_demand_mean: Duration,
    #[serde(deserialize_with = "up_to::<MAX_MEAN, _>")]
    unknown_mean: Duration,
    #[serde(deserialize_with = "weight")]
    prior_weight: f64,
});

section!(LimitsSection {
    jobs: NonZeroU32,
    jobs_per_user: NonZeroU32,
    connections: NonZeroU32,
    connections_per_job: NonZeroU32,
    #[serde(deserialize_with = "body_size")]
    request_body: u64,
});

/// Ten years: beyond it, no checkpoint would ever be due.
const MAX_MEAN: u64 = 10 * 365 * 24 * 3600;

/// A job description with a large environment is some hundred KiB.
const BODY_SIZES: std::ops::RangeInclusive<u64> = (64 << 10)..=(64 << 20);

fn directory<'de, D: Deserializer<'de>>(from: D) -> Result<Option<PathBuf>, D::Error> {
    let text = String::deserialize(from)?;
    absolute(&text).map(Some).map_err(D::Error::custom)
}

fn store_directory<'de, D: Deserializer<'de>>(from: D) -> Result<Option<PathBuf>, D::Error> {
    let text = String::deserialize(from)?;
    let path = match text.split_once("://") {
        Some(("file", path)) => path,
        Some((scheme, _)) => {
            return Err(D::Error::custom(format_args!(
                "store url {text:?}: {scheme}:// is not supported in this version, an absolute \
                 directory or file:///DIRECTORY is allowed"
            )));
        }
        None => text.as_str(),
    };
    absolute(path).map(Some).map_err(D::Error::custom)
}

fn absolute(text: &str) -> Result<PathBuf, String> {
    let path = Path::new(text);
    let normal = |part: Component<'_>| matches!(part, Component::RootDir | Component::Normal(_));
    if path.is_absolute() && path.components().all(normal) {
        // Without a trailing or repeated slash, so that derived paths look as people write them.
        Ok(path.components().collect())
    } else {
        Err(format!("invalid directory {text:?}: an absolute path without .. is allowed"))
    }
}

fn log_filter<'de, D: Deserializer<'de>>(from: D) -> Result<Option<String>, D::Error> {
    let text = String::deserialize(from)?;
    tracing_subscriber::EnvFilter::try_new(&text).map_err(|error| {
        D::Error::custom(format_args!(
            "invalid log filter {text:?}: {error}; such as \"info\" or \"warn,nodus_agent=debug\" is allowed"
        ))
    })?;
    Ok(Some(text))
}

fn threads<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Threads>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Raw {
        Count(NonZeroU32),
        Text(String),
    }
    match Raw::deserialize(from) {
        Ok(Raw::Count(count)) => Ok(Some(Threads::Count(count))),
        Ok(Raw::Text(text)) if text == "auto" => Ok(Some(Threads::Auto)),
        _ => Err(D::Error::custom("invalid threads: \"auto\" or a number from 1 is allowed")),
    }
}

/// A duration from one second to `MAX` seconds.
fn up_to<'de, const MAX: u64, D: Deserializer<'de>>(from: D) -> Result<Option<Duration>, D::Error> {
    let text = String::deserialize(from)?;
    let duration = units::parse_duration(&text).map_err(D::Error::custom)?;
    let (least, most) = (Duration::from_secs(1), Duration::from_secs(MAX));
    if (least..=most).contains(&duration) {
        return Ok(Some(duration));
    }
    let most = units::format_duration(most);
    Err(D::Error::custom(format_args!("invalid duration {text:?}: 1s to {most} is allowed")))
}

fn mode<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u32>, D::Error> {
    let text = String::deserialize(from)?;
    match u32::from_str_radix(&text, 8) {
        // Without write permission for its owner, nobody at all could connect.
        Ok(mode) if mode & !0o666 == 0 && mode & 0o600 == 0o600 => Ok(Some(mode)),
        _ => Err(D::Error::custom(format_args!(
            "invalid mode {text:?}: an octal text such as \"0660\" is allowed, with read and write \
             for the owner and nothing to execute"
        ))),
    }
}

fn weight<'de, D: Deserializer<'de>>(from: D) -> Result<Option<f64>, D::Error> {
    let weight = f64::deserialize(from)?;
    if (0.1..=100.0).contains(&weight) {
        return Ok(Some(weight));
    }
    Err(D::Error::custom(format_args!("invalid weight {weight}: 0.1 to 100.0 is allowed")))
}

fn body_size<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u64>, D::Error> {
    let size = ByteSize::deserialize(from)?;
    if BODY_SIZES.contains(&size.0) {
        return Ok(Some(size.0));
    }
    let (least, most) = (ByteSize(*BODY_SIZES.start()), ByteSize(*BODY_SIZES.end()));
    Err(D::Error::custom(format_args!("invalid size {size}: {least} to {most} is allowed")))
}
