//! Configuration: every option a flag and an environment variable, secrets also from files, every problem said at once.

use std::ffi::OsString;
use std::fmt::Display;
use std::str::FromStr;
use std::time::Duration;

use clap::{CommandFactory, Parser};

/// Exit code for a configuration that cannot work (`EX_USAGE` of sysexits.h).
pub const EXIT_USAGE: u8 = 64;

/// Options of every long-running process.
#[derive(Debug, Clone, clap::Args)]
pub struct Common {
    /// Address of /livez, /readyz and /metrics.
    #[arg(long, env = "COUNTERFOIL_ADMIN_LISTEN", default_value = "127.0.0.1:9600")]
    pub admin_listen: String,
    /// What to log: a level, or directives of tracing's EnvFilter (`info,counterfoil_relay=debug`).
    #[arg(long, env = "COUNTERFOIL_LOG", default_value = "info")]
    pub log: String,
    /// How to log: json or pretty.
    #[arg(long, env = "COUNTERFOIL_LOG_FORMAT", default_value = "json")]
    pub log_format: String,
    /// How long work in hand may take after SIGTERM, in seconds, before the process ends anyway.
    #[arg(long, env = "COUNTERFOIL_SHUTDOWN_DEADLINE_S", default_value = "25")]
    pub shutdown_deadline_s: String,
}

/// A process's options, checked in two steps so that every problem can be said at once.
pub trait Configure: Parser {
    /// The options once they have been proven.
    type Checked;

    /// The process's name in logs and metrics.
    const NAME: &'static str;

    /// The options that it shares with the others.
    fn common(&self) -> &Common;

    /// Proves every option; `None` when there is a problem.
    fn check(&self, problems: &mut Problems) -> Option<Self::Checked>;
}

/// The problems of a configuration.
#[derive(Debug, Default)]
pub struct Problems(Vec<String>);

impl Problems {
    /// Notes a problem with a variable.
    pub fn note(&mut self, variable: &str, problem: impl Display) {
        self.0.push(format!("{variable}: {problem}"));
    }

    /// A text that must be there.
    pub fn required(&mut self, variable: &str, value: Option<&String>) -> Option<String> {
        let value = value.filter(|value| !value.trim().is_empty());
        if value.is_none() {
            self.note(variable, "is required");
        }
        value.cloned()
    }

    /// A value that must parse.
    pub fn parsed<T: FromStr>(&mut self, variable: &str, value: &str) -> Option<T>
    where
        T::Err: Display,
    {
        value.trim().parse().map_err(|error| self.note(variable, format_args!("{value:?}: {error}"))).ok()
    }

    /// A whole number of seconds from `least` up.
    pub fn seconds(&mut self, variable: &str, value: &str, least: u64) -> Option<Duration> {
        let seconds: u64 = self.parsed(variable, value)?;
        if seconds < least {
            self.note(variable, format_args!("must be at least {least} seconds"));
            return None;
        }
        Some(Duration::from_secs(seconds))
    }

    /// A whole number within bounds.
    pub fn bounded(&mut self, variable: &str, value: &str, bounds: std::ops::RangeInclusive<usize>) -> Option<usize> {
        let number: usize = self.parsed(variable, value)?;
        if !bounds.contains(&number) {
            self.note(variable, format_args!("must be between {} and {}", bounds.start(), bounds.end()));
            return None;
        }
        Some(number)
    }

    /// Every problem, one a line; `None` when there is none.
    #[must_use]
    pub fn said(&self) -> Option<String> {
        (!self.0.is_empty()).then(|| self.0.join("\n"))
    }
}

/// Why a configuration was not read.
pub enum Unconfigured {
    /// `--help` or `--version`: print it and exit with 0.
    Asked(clap::Error),
    /// Arguments that are none: print what is wrong with them and exit with 64.
    Mistyped(clap::Error),
    /// Problems: print them and exit with 64.
    Wrong(String),
}

/// Reads the options from the arguments, the environment and the files that `…_FILE` variables name.
///
/// # Errors
/// When they were not given rightly.
pub fn read<C: Configure>() -> Result<(C, C::Checked), Unconfigured> {
    let mut problems = Problems::default();
    let arguments = arguments::<C>(&mut problems);
    let options = C::try_parse_from(arguments).map_err(|error| match error.kind() {
        clap::error::ErrorKind::DisplayHelp | clap::error::ErrorKind::DisplayVersion => Unconfigured::Asked(error),
        _ => Unconfigured::Mistyped(error),
    })?;
    let checked = options.check(&mut problems);
    match (checked, problems.said()) {
        (Some(checked), None) => Ok((options, checked)),
        (_, said) => Err(Unconfigured::Wrong(said.unwrap_or_else(|| "the configuration cannot work".into()))),
    }
}

/// The arguments, with one more for each option whose `…_FILE` variable is set and which is not given otherwise.
fn arguments<C: CommandFactory>(problems: &mut Problems) -> Vec<OsString> {
    let mut arguments: Vec<OsString> = std::env::args_os().collect();
    for option in C::command().get_arguments() {
        let (Some(variable), Some(long)) = (option.get_env().and_then(|env| env.to_str()), option.get_long()) else {
            continue;
        };
        let file_variable = format!("{variable}_FILE");
        let Some(path) = std::env::var_os(&file_variable) else {
            continue;
        };
        if std::env::var_os(variable).is_some() {
            problems.note(&file_variable, format_args!("is set together with {variable}: set one of them"));
            continue;
        }
        match std::fs::read_to_string(&path) {
            // In front of a subcommand, whose options these are not.
            Ok(text) => arguments.insert(1, format!("--{long}={}", text.trim_end_matches(['\n', '\r'])).into()),
            Err(error) => problems.note(&file_variable, format_args!("{}: {error}", path.display())),
        }
    }
    arguments
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_problem_is_said_at_once() {
        let mut problems = Problems::default();
        assert_eq!(problems.required("A", None), None);
        assert_eq!(problems.bounded("B", "0", 1..=9), None);
        assert_eq!(problems.parsed::<u16>("C", "x"), None);
        assert_eq!(problems.said().unwrap().lines().count(), 3);
    }
}
