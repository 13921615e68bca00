//! The command `ckpt`: from arguments to an exit code.

use std::io::{self, IsTerminal, Write};
use std::panic;
use std::process::ExitCode;

use ckpt_runner::cli::{Cli, Common};
use ckpt_runner::commands::{self, Failure};
use clap::Parser;
use tracing_subscriber::filter::LevelFilter;

fn main() -> ExitCode {
    // A panic is a bug; whoever meets it gets a line that says so, and no backtrace.
    panic::set_hook(Box::new(|panic| say(&format!("error: internal error: {panic}"))));
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // Help and version are not errors, and a reader that has gone away is none of ours.
            let _ = error.print();
            return ExitCode::from(if error.use_stderr() { 2 } else { 0 });
        }
    };
    start_logging(&cli.common);
    match panic::catch_unwind(|| commands::run(&cli)) {
        Ok(Ok(answer)) => ExitCode::from(answer.exit_code()),
        Ok(Err(failure)) => {
            report(&failure);
            ExitCode::from(failure.exit_code())
        }
        Err(_) => ExitCode::from(3),
    }
}

fn start_logging(common: &Common) {
    let level = match (common.quiet, common.verbose) {
        (true, _) => LevelFilter::ERROR,
        (false, 0) => LevelFilter::WARN,
        (false, 1) => LevelFilter::INFO,
        (false, _) => LevelFilter::DEBUG,
    };
    let ansi = io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    let logs = tracing_subscriber::fmt().with_writer(io::stderr).with_ansi(ansi).with_max_level(level);
    // The only one who starts it is this function, once.
    let _ = logs.without_time().with_target(false).try_init();
}

/// One line, then the causes. One that only says again what the line before it ended in is left out.
fn report(failure: &Failure) {
    let error = failure.error();
    let mut last = one_line(error);
    say(&format!("error: {last}"));
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        let line = one_line(error);
        if !last.ends_with(&line) {
            say(&format!("  caused by: {line}"));
            last = line;
        }
        cause = error.source();
    }
}

fn one_line(error: &dyn std::error::Error) -> String {
    error.to_string().split_whitespace().collect::<Vec<_>>().join(" ")
}

fn say(line: &str) {
    // Nobody is left to tell that standard error is closed.
    let _ = writeln!(io::stderr(), "{line}");
}
