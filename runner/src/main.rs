//! The command `ckpt`.

use std::process::ExitCode;

fn main() -> ExitCode {
    ckpt_runner::cli::main()
}
