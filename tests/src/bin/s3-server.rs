//! A small S3 server to try `s3://` on one machine. Runs until Ctrl-C.
//!
//! `cargo run --release -p ckpt-tests --bin s3-server [-- --dir DIR --port PORT --bucket NAME]`

use std::path::PathBuf;
use std::process::ExitCode;

use ckpt_tests::s3_server::{S3Server, serve_all};

const USAGE: &str = "usage: s3-server [--dir DIR] [--port PORT] [--bucket NAME]

Serves DIR (default ./s3-data) as S3 on 127.0.0.1:PORT (default 8014) with one bucket (default ckpt), until Ctrl-C.";

struct Arguments {
    dir: PathBuf,
    port: u16,
    bucket: String,
}

fn main() -> ExitCode {
    let arguments = match parse(std::env::args().skip(1)) {
        Ok(Some(arguments)) => arguments,
        Ok(None) => {
            println!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        Err(wrong) => {
            eprintln!("s3-server: {wrong}\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    let started = std::fs::create_dir_all(&arguments.dir)
        .and_then(|()| S3Server::start(&arguments.dir, arguments.port, serve_all()))
        .and_then(|server| server.create_bucket(&arguments.bucket).map(|()| server));
    let server = match started {
        Ok(server) => server,
        Err(error) => {
            let (dir, port) = (arguments.dir.display(), arguments.port);
            eprintln!("s3-server: cannot serve: {error} dir=`{dir}` port=`{port}`");
            return ExitCode::from(3);
        }
    };
    for (name, value) in server.environment() {
        println!("export {name}={value}");
    }
    println!("# now `s3://{}/run1` is a store; Ctrl-C ends the server", arguments.bucket);
    loop {
        std::thread::park();
    }
}

/// `None` if help is asked for.
fn parse(mut given: impl Iterator<Item = String>) -> Result<Option<Arguments>, String> {
    let mut arguments = Arguments { dir: PathBuf::from("s3-data"), port: 8014, bucket: "ckpt".to_owned() };
    while let Some(flag) = given.next() {
        if flag == "--help" || flag == "-h" {
            return Ok(None);
        }
        let value =
            given.next().ok_or_else(|| format!("unknown flag, or one without its value flag=`{flag}`"))?;
        match flag.as_str() {
            "--dir" => arguments.dir = value.into(),
            "--port" => {
                arguments.port = value.parse().map_err(|_| format!("no port number port=`{value}`"))?
            }
            "--bucket" => arguments.bucket = value,
            _ => return Err(format!("unknown flag flag=`{flag}`")),
        }
    }
    Ok(Some(arguments))
}
