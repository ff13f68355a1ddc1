//! The order of kernels listed without a problem.

use std::sync::LazyLock;

use super::instance::Kernel;
use super::space::all;

/// Positions in [`all`] of the kernels that a list without a problem contains, in its order: all
/// but those with fast sums, which only a problem that permits them may use.
///
/// A client that chooses from this list, such as PyTorch's NVGEMM backend, times the first five
/// kernels that support its problem. The leading kernels are therefore a small set of which one is
/// nearly the fastest for any linear layer. The others follow in the order of [`all`].
pub fn listed() -> &'static [usize] {
    static LISTED: LazyLock<Vec<usize>> = LazyLock::new(|| {
        let place = |position: usize| all()[position].design.family().leading_place();
        let (mut leading, others): (Vec<usize>, Vec<usize>) = (0..all().len())
            .filter(|position| !all()[*position].facts.fast_sums)
            .partition(|position| place(*position).is_some());
        leading.sort_by_key(|position| place(*position) != Some(0));
        // A one-row operand is both row- and column-major; grouping by layout stops four twins from
        // leading.
        let group = |kernel: &Kernel| (kernel.types, kernel.demands());
        let is_same_group = |a: &usize, b: &usize| group(&all()[*a]) == group(&all()[*b]);
        for kernels in leading.chunk_by_mut(is_same_group) {
            kernels.sort_by_key(|position| place(*position));
        }
        leading.extend(others);
        leading
    });
    &LISTED
}
