//! The list of kernel families.

use super::cpu::Reference;
use super::elementwise::Elementwise;
use super::family::Family;
use super::sgemm::Sgemm;
use super::simt::Simt;
use super::skinny::Skinny;
use super::sm80::Sm80;
use super::sm90::Sm90;
use super::types::Types;

macro_rules! families {
    ($($family:ident),* $(,)?) => {
        /// A kernel's family, with its configuration.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Design {
            $($family($family),)*
        }

        impl Design {
            /// The configuration as an implementation of [`Family`].
            #[inline]
            pub fn family(&self) -> &(dyn Family + 'static) {
                match self {
                    $(Design::$family(configuration) => configuration,)*
                }
            }

            /// Every configuration of every family, with its element types.
            pub fn space() -> impl Iterator<Item = (Types, Design)> {
                std::iter::empty()$(.chain(
                    $family::space()
                        .map(|(types, configuration)| (types, Design::$family(configuration))),
                ))*
            }
        }
    };
}

impl Design {
    /// This configuration for a joint GEMM of so many matrices as the program's A (0) or B (1).
    /// Unchanged in families that serve none.
    pub fn joint(self, matrices: u32, joined: usize) -> Design {
        match self {
            Design::Sm90(config) => Design::Sm90(Sm90 { matrices, joined: joined as u8, ..config }),
            Design::Skinny(config) => Design::Skinny(Skinny { matrices, ..config }),
            other => other,
        }
    }

    /// This configuration for epilogues that take a second product. Unchanged in families whose
    /// programs are the same, and in those that serve no such epilogue.
    pub fn dual(self) -> Design {
        match self {
            Design::Sm90(config) => Design::Sm90(Sm90 { dual: true, ..config }),
            other => other,
        }
    }
}

// In the order of `all`: tensor cores first.
families! { Sm90, Sm80, Skinny, Sgemm, Simt, Elementwise, Reference }
