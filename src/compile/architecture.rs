//! Architectures and the NVRTC options for them.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A target of code generation, such as `sm_90a`. `cc` is the compute capability times ten.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Architecture {
    pub cc: u32,
    /// Whether this is the `a` variant, whose code may use all instructions of the capability and
    /// runs only on it.
    pub specific: bool,
}

impl Architecture {
    /// The architecture of a compute capability: `sm_90a` for Hopper, since wgmma and setmaxnreg
    /// exist only in the `a` variant (PTX ISA, "Target architectures").
    pub(super) fn of(cc: u32) -> Architecture {
        Architecture { cc, specific: cc == 90 }
    }

    /// Whether code for this architecture runs on a device of this capability.
    pub fn runs_on(self, device_cc: u32) -> bool {
        if self.specific {
            self.cc == device_cc
        } else {
            self.cc / 10 == device_cc / 10 && self.cc <= device_cc
        }
    }

    /// NVRTC's options for every program. With `-default-device`, functions need no `__device__`.
    pub fn common_options(self) -> Vec<String> {
        vec![format!("--gpu-architecture={self}"), "-default-device".into()]
    }

    /// NVRTC's options for the programs of the kernel families. `-O2` compiles in about half the
    /// time of ptxas's default `-O3`; the fastest kernels lose a few percent
    /// (docs/design/compiling.md). `--minimal` and the `--builtin` options drop declarations that
    /// these programs do not use.
    pub fn options(self, nvrtc: (i32, i32)) -> Vec<String> {
        const MINIMAL_SINCE: (i32, i32) = (12, 4);
        let mut options = self.common_options();
        let ours = [
            "-std=c++17",
            "--ptxas-options=-O2",
            "--builtin-move-forward=false",
            "--builtin-initializer-list=false",
        ];
        options.extend(ours.map(String::from));
        options.extend((nvrtc >= MINIMAL_SINCE).then(|| "--minimal".into()));
        options
    }
}

impl fmt::Display for Architecture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sm_{}{}", self.cc, if self.specific { "a" } else { "" })
    }
}

#[cfg(test)]
mod tests {
    use super::Architecture;

    #[test]
    fn code_runs_within_its_major_version_and_a_variants_on_one_capability() {
        let ampere = Architecture { cc: 80, specific: false };
        assert!(
            ampere.runs_on(80) && ampere.runs_on(86) && ampere.runs_on(89) && !ampere.runs_on(90)
        );
        let hopper = Architecture { cc: 90, specific: true };
        assert!(hopper.runs_on(90) && !hopper.runs_on(100));
        assert_eq!(hopper.to_string(), "sm_90a");
        assert!(!Architecture { cc: 103, specific: false }.runs_on(100));
    }
}
