use std::process::ExitCode;

fn main() -> ExitCode {
    qerl::cli::main()
}
