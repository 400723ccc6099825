//! Compiles the kernel programs of the mode eBPF, each `src/ebpf/bpf/NAME.bpf.c` to `$OUT_DIR/NAME.bpf.o`.

use std::path::Path;
use std::process::Command;
use std::{env, fs};

const SOURCES: &str = "src/ebpf/bpf";

fn main() {
    println!("cargo::rerun-if-changed={SOURCES}");
    println!("cargo::rerun-if-env-changed=CLANG");
    let clang = env::var("CLANG").unwrap_or_else(|_| "clang".to_owned());
    let out = env::var("OUT_DIR").expect("cargo sets it");
    let arch = env::var("CARGO_CFG_TARGET_ARCH").expect("cargo sets it");
    for entry in fs::read_dir(SOURCES).expect("the sources of the kernel programs are there") {
        let path = entry.expect("a folder entry can be read").path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if let Some(name) = name.strip_suffix(".bpf.c") {
            compile(&clang, &path, &Path::new(&out).join(format!("{name}.bpf.o")), &arch);
        }
    }
}

fn compile(clang: &str, source: &Path, object: &Path, arch: &str) {
    let mut command = Command::new(clang);
    command.args(["-O2", "-g", "-target", "bpf", "-mcpu=v3", "-Wall", "-Wextra", "-Werror", "-c"]);
    // Debian keeps the asm/ headers per architecture; the target bpf has none of its own.
    command.arg(format!("-I/usr/include/{arch}-linux-gnu")).arg(source).arg("-o").arg(object);
    let problem = match command.status() {
        Ok(status) if status.success() => return,
        Ok(status) => format!("{clang} could not compile it ({status})"),
        Err(error) => format!("{clang} cannot be run: {error}"),
    };
    panic!("{}: {problem}; `make setup` installs clang and the headers of libbpf", source.display());
}
