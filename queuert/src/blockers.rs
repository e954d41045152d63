//! The chains that a job waits for: how a job type declares them, how a starter gives them, how a processor reads them.

use std::fmt;
use std::marker::PhantomData;

use crate::chain::{ChainHandle, ChainRecord};
use crate::error::Error;
use crate::id::ChainId;
use crate::job_type::Entry;

/// One blocker: a chain that starts with an `A`.
pub struct One<A>(PhantomData<fn() -> A>);

/// Any number of blockers: chains that start with an `A`.
pub struct Many<A>(PhantomData<fn() -> A>);

impl<A> fmt::Debug for One<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("One")
    }
}

impl<A> fmt::Debug for Many<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Many")
    }
}

/// The blockers that a job type declares: `()`, [`One`], a tuple of entry types, or [`Many`].
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not describe blockers",
    note = "blockers are chains: name an entry job type, a tuple of two to eight of them, or `[Entry]` for any number"
)]
pub trait BlockerSpec: Send + Sync + 'static {
    /// The outputs that the processor reads, in the declared order.
    type Outputs: Send + 'static;

    /// Decodes the outputs of the completed blocker chains.
    ///
    /// # Errors
    ///
    /// If the chains are not the declared ones, one has no output, or an output cannot be decoded.
    fn decode(chains: &[ChainRecord]) -> Result<Self::Outputs, Error>;
}

fn output_at<A: Entry>(chains: &[ChainRecord], index: usize) -> Result<A::Output, Error> {
    let Some(chain) = chains.get(index) else {
        return Err(Error::BlockerMissing {
            index,
            expected: A::NAME.into(),
        });
    };
    output_of::<A>(chain)
}

fn output_of<A: Entry>(chain: &ChainRecord) -> Result<A::Output, Error> {
    chain.check_readable()?;
    if chain.type_name.as_str() != A::NAME {
        return Err(Error::TypeMismatch {
            id: chain.id.first_job(),
            expected: A::NAME.into(),
            actual: chain.type_name.clone(),
        });
    }
    chain.decode_output::<A>()?.ok_or_else(|| Error::Undecodable {
        id: chain.latest_job,
        type_name: chain.latest_type.clone(),
        part: "output",
        message: format!("the chain is {}, it has no output", chain.status),
    })
}

impl BlockerSpec for () {
    type Outputs = ();

    fn decode(_: &[ChainRecord]) -> Result<(), Error> {
        Ok(())
    }
}

impl<A: Entry> BlockerSpec for One<A> {
    type Outputs = A::Output;

    fn decode(chains: &[ChainRecord]) -> Result<A::Output, Error> {
        output_at::<A>(chains, 0)
    }
}

impl<A: Entry> BlockerSpec for Many<A> {
    type Outputs = Vec<A::Output>;

    fn decode(chains: &[ChainRecord]) -> Result<Self::Outputs, Error> {
        chains.iter().map(output_of::<A>).collect()
    }
}

/// The chains given as blockers: a handle, a tuple of handles, or an array, slice or `Vec` of them.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a chain to wait for",
    note = "pass one chain handle, a tuple of them, or an array, slice or `Vec` of handles of one type"
)]
pub trait Blockers {
    /// The declaration that these blockers satisfy.
    type Kind;

    /// The ids, in the given order.
    fn chain_ids(&self) -> Vec<ChainId>;
}

#[diagnostic::do_not_recommend]
impl<H: ChainHandle> Blockers for H {
    type Kind = One<H::Entry>;

    fn chain_ids(&self) -> Vec<ChainId> {
        vec![self.chain_ref().id()]
    }
}

impl<H: ChainHandle> Blockers for Vec<H> {
    type Kind = Many<H::Entry>;

    fn chain_ids(&self) -> Vec<ChainId> {
        self.iter().map(|handle| handle.chain_ref().id()).collect()
    }
}

impl<H: ChainHandle> Blockers for &Vec<H> {
    type Kind = Many<H::Entry>;

    fn chain_ids(&self) -> Vec<ChainId> {
        self.iter().map(|handle| handle.chain_ref().id()).collect()
    }
}

impl<H: ChainHandle> Blockers for &[H] {
    type Kind = Many<H::Entry>;

    fn chain_ids(&self) -> Vec<ChainId> {
        self.iter().map(|handle| handle.chain_ref().id()).collect()
    }
}

impl<H: ChainHandle, const N: usize> Blockers for [H; N] {
    type Kind = Many<H::Entry>;

    fn chain_ids(&self) -> Vec<ChainId> {
        self.iter().map(|handle| handle.chain_ref().id()).collect()
    }
}

macro_rules! tuples {
    ($(($($entry:ident $handle:ident $index:tt),+))+) => {$(
        impl<$($entry: Entry),+> BlockerSpec for ($($entry,)+) {
            type Outputs = ($($entry::Output,)+);

            fn decode(chains: &[ChainRecord]) -> Result<Self::Outputs, Error> {
                Ok(($(output_at::<$entry>(chains, $index)?,)+))
            }
        }

        impl<$($handle: ChainHandle),+> Blockers for ($($handle,)+) {
            type Kind = ($($handle::Entry,)+);

            fn chain_ids(&self) -> Vec<ChainId> {
                vec![$(self.$index.chain_ref().id()),+]
            }
        }
    )+};
}

tuples! {
    (A HA 0, B HB 1)
    (A HA 0, B HB 1, C HC 2)
    (A HA 0, B HB 1, C HC 2, D HD 3)
    (A HA 0, B HB 1, C HC 2, D HD 3, E HE 4)
    (A HA 0, B HB 1, C HC 2, D HD 3, E HE 4, F HF 5)
    (A HA 0, B HB 1, C HC 2, D HD 3, E HE 4, F HF 5, G HG 6)
    (A HA 0, B HB 1, C HC 2, D HD 3, E HE 4, F HF 5, G HG 6, H HH 7)
}
