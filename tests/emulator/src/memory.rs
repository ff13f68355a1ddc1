//! Memory: the state spaces, what a kernel may use of them, loads and stores.
//!
//! Addresses of global, local and parameter memory are the host's. Shared memory has addresses of
//! its own, with the CTA's rank in the upper bits.

use crate::arithmetic::signed;
use crate::launch::{Launch, Result};
use crate::program::{Arg, SHARED_BASE, Space, Type};
use crate::thread::Run;

/// Generic addresses of shared memory: these bits, then the address in the shared window.
pub const SHARED_WINDOW: u64 = 0x7ff0_0000_0000_0000;
/// The CTA's rank in a shared address starts at this bit.
pub const RANK_BIT: u32 = 24;

/// The same place in the shared memory of another CTA of the cluster.
pub fn of_cta(shared: u64, rank: u64) -> u64 {
    rank << RANK_BIT | shared & ((1 << RANK_BIT) - 1)
}

impl Run<'_> {
    /// The host's address of memory in a state space.
    pub fn host(&mut self, space: Space, address: u64, bytes: usize) -> Result<*mut u8> {
        let is_shared =
            space == Space::Shared || space == Space::Generic && address >= SHARED_WINDOW;
        if is_shared {
            return self.shared(address & 0xffff_ffff, bytes);
        }
        if space == Space::Global || space == Space::Generic && !self.is_own(address) {
            self.launch.check(address, bytes)?;
        }
        if !address.is_multiple_of(bytes.next_power_of_two() as u64) {
            return Err(format!("{address:#x} is not aligned to {bytes} bytes"));
        }
        Ok(std::ptr::with_exposed_provenance_mut(address as usize))
    }

    /// Whether an address lies in the parameters or the thread's local memory.
    fn is_own(&self, address: u64) -> bool {
        let within = |bytes: &[u8]| {
            let start = bytes.as_ptr().addr() as u64;
            (start..start + bytes.len() as u64).contains(&address)
        };
        let globals = &self.launch.kernel.globals;
        within(self.launch.parameters.bytes())
            || within(&self.current().local)
            || globals.iter().any(|bytes| within(bytes))
    }

    pub fn shared(&mut self, address: u64, bytes: usize) -> Result<*mut u8> {
        let rank = (address >> RANK_BIT) as usize;
        let at = (address & ((1 << RANK_BIT) - 1)).wrapping_sub(SHARED_BASE) as usize;
        let cta = self.cluster.ctas.get_mut(rank).ok_or("shared memory of no CTA")?;
        let end = at.checked_add(bytes).ok_or("shared memory wraps around")?;
        let size = cta.shared.len();
        match cta.shared.get_mut(at..end) {
            Some(_) if !at.is_multiple_of(bytes.next_power_of_two().min(16)) => {
                Err(format!("shared byte {at} is not aligned to {bytes} bytes"))
            }
            Some(memory) => Ok(memory.as_mut_ptr()),
            None => Err(format!("shared bytes {at}..{end} of {size}")),
        }
    }

    pub fn read(&mut self, space: Space, address: u64, bytes: usize) -> Result<u64> {
        let from = self.host(space, address, bytes)?;
        let mut value = [0u8; 8];
        // SAFETY: `host` checks the address.
        unsafe { std::ptr::copy_nonoverlapping(from, value.as_mut_ptr(), bytes) };
        Ok(u64::from_le_bytes(value))
    }

    pub fn write(&mut self, space: Space, address: u64, bytes: usize, value: u64) -> Result<()> {
        let to = self.host(space, address, bytes)?;
        // SAFETY: as in `read`.
        unsafe { std::ptr::copy_nonoverlapping(value.to_le_bytes().as_ptr(), to, bytes) };
        Ok(())
    }

    pub fn load(&mut self, space: Space, kind: Type, args: &[Arg]) -> Result<()> {
        let (address, bytes) = (self.address(&args[1])?, kind.bytes());
        let one = std::slice::from_ref(&args[0]);
        let parts = if let Arg::Vector(parts) = &args[0] { &**parts } else { one };
        let from = self.host(space, address, bytes * parts.len())?;
        for (at, part) in parts.iter().enumerate() {
            let mut value = [0u8; 8];
            // SAFETY: `host` checks all parts.
            unsafe {
                std::ptr::copy_nonoverlapping(from.add(at * bytes), value.as_mut_ptr(), bytes);
            }
            let value = u64::from_le_bytes(value);
            let value = match kind {
                Type::Signed(width) => signed(value, width) as u64,
                _ => value,
            };
            self.set(part, value)?;
        }
        Ok(())
    }

    pub fn store(&mut self, space: Space, kind: Type, args: &[Arg]) -> Result<()> {
        let (address, bytes) = (self.address(&args[0])?, kind.bytes());
        let one = std::slice::from_ref(&args[1]);
        let parts = if let Arg::Vector(parts) = &args[1] { &**parts } else { one };
        let to = self.host(space, address, bytes * parts.len())?;
        for (at, part) in parts.iter().enumerate() {
            let value = self.value(part)?.to_le_bytes();
            // SAFETY: as in `load`.
            unsafe { std::ptr::copy_nonoverlapping(value.as_ptr(), to.add(at * bytes), bytes) };
        }
        Ok(())
    }
}

impl Launch<'_> {
    /// Refuses memory that was not allocated.
    pub fn check(&self, address: u64, bytes: usize) -> Result<()> {
        let end = address.checked_add(bytes as u64).ok_or("an access wraps around")?;
        let allowed = |(start, stop): &(u64, u64)| *start <= address && end <= *stop;
        match self.memory.iter().any(allowed) {
            true => Ok(()),
            false => Err(format!("bytes {address:#x}..{end:#x} are not allocated")),
        }
    }
}
