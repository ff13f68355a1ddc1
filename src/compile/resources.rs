//! The resources of a compiled kernel, which ptxas reports in NVRTC's log.

use serde::{Deserialize, Serialize};

/// Makes ptxas report the resources of each kernel (CUDA Compiler Driver NVCC, "--verbose").
pub(super) const REPORT: &str = "--ptxas-options=-v";

/// What one thread or one CTA of a kernel uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resources {
    /// Registers of a thread.
    pub registers: u32,
    /// Bytes of local memory of a thread: arrays that are indexed at run time, and spilled
    /// registers.
    pub stack_bytes: u32,
    /// Bytes that spilled registers are stored to and loaded from.
    pub spill_store_bytes: u32,
    pub spill_load_bytes: u32,
    /// Static shared memory of a CTA.
    pub static_shared_bytes: u32,
}

/// How the lines of a report begin, or what they contain. Other lines are messages to the user.
const REPORTED: [&str; 6] = [
    ": Compiling entry function '",
    ": Function properties for ",
    " bytes stack frame, ",
    ": Used ",
    ": Compile time = ",
    " bytes gmem",
];

/// Splits NVRTC's log into the resources of a kernel function and the compiler's messages. Without
/// a report on the function, the resources are zero.
pub(super) fn split(log: &str, function: &str) -> (Resources, String) {
    let is_report =
        |line: &&str| line.starts_with("ptxas ") && REPORTED.iter().any(|part| line.contains(part));
    let begin = format!(": Compiling entry function '{function}'");
    let properties = format!(": Function properties for {function}");
    let mut lines = log.lines().filter(is_report).skip_while(|line| !line.contains(&begin));
    lines.next();
    let report: Vec<_> =
        lines.take_while(|line| !line.contains(": Compiling entry function '")).collect();
    let frame = report
        .iter()
        .skip_while(|line| !line.ends_with(&properties))
        .find(|line| line.contains(" bytes stack frame, "))
        .map_or("", |line| line);
    let used = report.iter().find(|line| line.contains(": Used ")).map_or("", |line| line);
    let resources = Resources {
        registers: number_before(used, " registers"),
        stack_bytes: number_before(frame, " bytes stack frame"),
        spill_store_bytes: number_before(frame, " bytes spill stores"),
        spill_load_bytes: number_before(frame, " bytes spill loads"),
        static_shared_bytes: number_before(used, " bytes smem"),
    };
    let messages: Vec<_> = log.lines().filter(|line| !is_report(line)).collect();
    (resources, messages.join("\n"))
}

/// The number that ends where `unit` begins; 0 without one.
fn number_before(line: &str, unit: &str) -> u32 {
    let Some((before, _)) = line.split_once(unit) else { return 0 };
    let digits = before.rfind(|c: char| !c.is_ascii_digit()).map_or(0, |at| at + 1);
    before[digits..].parse().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: &str = "rutlass.cu(3): warning #177-D: variable \"x\" was declared\n\
        ptxas info    : 4 bytes gmem\n\
        ptxas info    : (C7510) Potential Performance Loss: wgmma is serialized in 'kernel'\n\
        ptxas info    : Compiling entry function 'other' for 'sm_90a'\n\
        ptxas info    : Function properties for other\n\
        ptxas         .     8 bytes stack frame, 8 bytes spill stores, 8 bytes spill loads\n\
        ptxas info    : Used 16 registers, used 0 barriers\n\
        ptxas info    : Compiling entry function 'kernel' for 'sm_90a'\n\
        ptxas info    : Function properties for helper\n\
        ptxas         .     4 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n\
        ptxas info    : Function properties for kernel\n\
        ptxas         .     256 bytes stack frame, 24 bytes spill stores, 16 bytes spill loads\n\
        ptxas info    : Used 168 registers, used 1 barriers, 1024 bytes smem, 400 bytes cmem[0]\n\
        ptxas info    : Compile time = 45.649 ms";

    #[test]
    fn a_report_is_read_and_messages_remain() {
        let (resources, messages) = split(LOG, "kernel");
        let expected = Resources {
            registers: 168,
            stack_bytes: 256,
            spill_store_bytes: 24,
            spill_load_bytes: 16,
            static_shared_bytes: 1024,
        };
        assert_eq!(resources, expected);
        let kept: Vec<_> =
            LOG.lines().filter(|line| line.contains(" #177") || line.contains("C7510")).collect();
        assert_eq!(messages, kept.join("\n"));
        assert_eq!(split("", "kernel"), (Resources::default(), String::new()));
    }
}
