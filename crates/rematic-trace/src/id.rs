/// Declares ids of a kind, for a [`Table`](crate::Table) of it.
#[macro_export]
macro_rules! id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(u32);

        impl $name {
            /// The id of the item at `index`.
            ///
            /// # Panics
            /// If `index` does not fit 32 bits; traces are limited to that many items of each kind.
            #[must_use]
            pub fn new(index: usize) -> Self {
                Self(u32::try_from(index).expect("a trace holds fewer than 2^32 items of a kind"))
            }

            /// The position in the table that this id points into.
            #[must_use]
            pub fn index(self) -> usize {
                self.0 as usize
            }
        }

        impl $crate::Id for $name {
            fn at(index: usize) -> Self {
                Self::new(index)
            }

            fn position(self) -> usize {
                self.index()
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

id!(
    /// An operator, numbered in the order of execution.
    OpId
);
id!(
    /// A block of memory.
    StorageId
);
id!(
    /// A module of the tree; the root is 0.
    ModuleId
);
id!(
    /// One call of a module's forward, numbered in the order in which the calls begin.
    CallId
);
id!(
    /// A distinct tensor layout.
    LayoutId
);
id!(
    /// A distinct operator name.
    NameId
);
id!(
    /// A queue of work on the device; [`StreamId::COMPUTE`] is the one that models run on.
    StreamId
);
id!(
    /// A distinct way to communicate.
    CollectiveId
);

impl StreamId {
    /// The stream that models run on.
    pub const COMPUTE: StreamId = StreamId(0);
}

impl Default for StreamId {
    fn default() -> Self {
        StreamId::COMPUTE
    }
}
