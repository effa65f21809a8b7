use rematic_trace::{Dtype, Layout};

use super::Fsdp2;

/// How the rows of a tensor are dealt out.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rows {
    ranks: u64,
    rank: u64,
    /// The type of what is spread, if it is another than that of the step.
    dtype: Option<Dtype>,
}

impl Rows {
    pub(crate) fn new(how: &Fsdp2) -> Self {
        Rows { ranks: u64::from(how.ranks), rank: u64::from(how.rank), dtype: how.shards }
    }

    /// The rows in a chunk: as many as the first rank has, and all others after padding.
    fn chunk(self, rows: u64) -> u64 {
        rows.div_ceil(self.ranks)
    }

    /// A tensor's rows of this rank, in the type that the shards have.
    pub(crate) fn own(self, layout: &Layout) -> Layout {
        let mut shape = layout.shape.clone();
        if let Some(rows) = shape.first_mut() {
            let chunk = self.chunk(*rows);
            *rows = rows.saturating_sub(chunk.saturating_mul(self.rank)).min(chunk);
        }
        Layout::contiguous(self.dtype_of(layout.dtype), &shape)
    }

    /// What the rank's rows take.
    pub(crate) fn own_bytes(self, layout: &Layout) -> u64 {
        let own = self.own(layout);
        own.elements().saturating_mul(own.dtype.size())
    }

    /// The elements of a chunk.
    pub(crate) fn padded_elements(self, layout: &Layout) -> u64 {
        let mut shape = layout.shape.clone();
        if let Some(rows) = shape.first_mut() {
            *rows = self.chunk(*rows);
        }
        Layout::contiguous(layout.dtype, &shape).elements()
    }

    /// The type that a tensor has in the shards.
    pub(crate) fn dtype_of(self, dtype: Dtype) -> Dtype {
        self.dtype.filter(|_| dtype.is_float()).unwrap_or(dtype)
    }
}
