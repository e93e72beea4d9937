//! Leaves methods of [`Store`](crate::Store) to the store inside, for a store that wraps another one.
//!
//! The methods are written out as `async_trait` would write them, and return the future of the store inside:
//! to forward a call costs nothing.

use std::pin::Pin;

pub use onlyonce_core::{
    CallerMark, Policy, Recipe, RecipeId, Record, RecordId, Scope, Secret,
    record::{Change, JournalEntry, Revision},
};
pub use std::{sync::Arc, time::Duration};
pub use tokio::sync::broadcast::Receiver;

use crate::StoreError;

/// What an async method of [`Store`](crate::Store) returns.
pub type Answer<'a, T> = Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send + 'a>>;

/// What [`close`](crate::Store::close) returns.
pub type Closing<'a> = Pin<Box<dyn Future<Output = ()> + Send + 'a>>;

/// Writes methods of [`Store`](crate::Store) that call the same method of a field of `self`; for an
/// `#[async_trait] impl Store`. A method with a default that a wrapper neither writes nor names here would be
/// the default's, and not that of the store inside.
#[macro_export]
#[doc(hidden)]
macro_rules! forward_store {
    ($inner:ident: $($method:ident),* $(,)?) => { $($crate::forward_store!(@$method $inner);)* };

    (@level $inner:ident) => {
        fn level(&self) -> $crate::Level { self.$inner.level() }
    };
    (@copies $inner:ident) => {
        fn copies(&self) -> $crate::Copies { self.$inner.copies() }
    };
    (@secret $inner:ident) => {
        fn secret(&self) -> &$crate::forward::Secret { self.$inner.secret() }
    };
    (@peek $inner:ident) => {
        fn peek(&self, id: $crate::forward::RecordId) -> Option<$crate::Reply<$crate::forward::Record>> {
            self.$inner.peek(id)
        }
    };
    (@delete $inner:ident) => {
        $crate::forward_store!(@0 $inner delete(
            id: $crate::forward::RecordId, expected: $crate::forward::Revision) -> bool);
    };
    (@append $inner:ident) => {
        $crate::forward_store!(@0 $inner append(journal: Vec<$crate::forward::JournalEntry>) -> ());
    };
    (@prune_audit $inner:ident) => {
        $crate::forward_store!(@0 $inner prune_audit(keep: $crate::forward::Duration) -> ());
    };
    (@lapsed $inner:ident) => {
        $crate::forward_store!(@0 $inner lapsed(limit: usize) -> $crate::Reply<Vec<$crate::forward::Record>>);
    };
    (@due $inner:ident) => {
        $crate::forward_store!(@0 $inner due(limit: usize) -> $crate::Reply<Vec<$crate::forward::Record>>);
    };
    (@walk $inner:ident) => {
        $crate::forward_store!(@0 $inner walk(limit: usize) -> $crate::Reply<$crate::Walk>);
    };
    (@list $inner:ident) => {
        $crate::forward_store!(@1 $inner list(
            filter: $crate::Filter, cursor: Option<u64>, limit: usize) -> $crate::Page<$crate::Listed>);
    };
    (@list_in $inner:ident) => {
        $crate::forward_store!(@2 $inner list_in(
            scopes: [$crate::forward::Scope], filter: $crate::Filter, cursor: Option<u64>, limit: usize)
            -> Option<$crate::Page<$crate::Listed>>);
    };
    (@keep_scope $inner:ident) => {
        fn keep_scope<'s, 'n, 'a>(
            &'s self,
            id: $crate::forward::RecordId,
            name: &'n str,
        ) -> $crate::forward::Answer<'a, ()>
        where
            's: 'a,
            'n: 'a,
            Self: 'a,
        {
            self.$inner.keep_scope(id, name)
        }
    };
    (@scopes $inner:ident) => {
        $crate::forward_store!(@0 $inner scopes(after: Option<$crate::forward::RecordId>)
            -> Option<Vec<($crate::forward::RecordId, String)>>);
    };
    (@listed $inner:ident) => {
        $crate::forward_store!(@1 $inner listed(ids: [$crate::forward::RecordId])
            -> Vec<(u64, $crate::Listed)>);
    };
    (@history $inner:ident) => {
        $crate::forward_store!(@0 $inner history(id: $crate::forward::RecordId) -> Vec<$crate::JournalRow>);
    };
    (@audit $inner:ident) => {
        $crate::forward_store!(@0 $inner audit(cursor: Option<u64>, limit: usize)
            -> $crate::Page<$crate::JournalRow>);
    };
    (@counts $inner:ident) => {
        $crate::forward_store!(@0 $inner counts() -> $crate::Counts);
    };
    (@live $inner:ident) => {
        $crate::forward_store!(@1 $inner live(
            scope: $crate::forward::Scope, caller: Option<$crate::forward::CallerMark>, limit: u64) -> u64);
    };
    (@keep_recipe $inner:ident) => {
        $crate::forward_store!(@1 $inner keep_recipe(recipe: $crate::forward::Recipe) -> ());
    };
    (@keep_policy $inner:ident) => {
        $crate::forward_store!(@2 $inner keep_policy(route: str, policy: $crate::forward::Policy) -> ());
    };
    (@recipe $inner:ident) => {
        $crate::forward_store!(@0 $inner recipe(id: $crate::forward::RecipeId)
            -> Option<$crate::forward::Recipe>);
    };
    (@keep_block $inner:ident) => {
        $crate::forward_store!(@2 $inner keep_block(name: str, bytes: [u8]) -> Vec<u8>);
    };
    (@block $inner:ident) => {
        $crate::forward_store!(@1 $inner block(name: str) -> Option<Vec<u8>>);
    };
    (@note_clock $inner:ident) => {
        $crate::forward_store!(@1 $inner note_clock(mark: [u8]) -> ());
    };
    (@noted_clock $inner:ident) => {
        $crate::forward_store!(@0 $inner noted_clock() -> Option<Vec<u8>>);
    };
    (@identity $inner:ident) => {
        fn identity(&self) -> $crate::Identity { self.$inner.identity() }
    };
    (@standing $inner:ident) => {
        $crate::forward_store!(@0 $inner standing() -> Option<$crate::Standing>);
    };
    (@raise_epoch $inner:ident) => {
        $crate::forward_store!(@0 $inner raise_epoch() -> $crate::Epoch);
    };
    (@note_lost $inner:ident) => {
        $crate::forward_store!(@0 $inner note_lost(loss: $crate::Loss) -> ());
    };
    (@accept_incomplete $inner:ident) => {
        $crate::forward_store!(@0 $inner accept_incomplete() -> ());
    };
    (@renew_identity $inner:ident) => {
        $crate::forward_store!(@0 $inner renew_identity() -> $crate::Identity);
    };
    (@conceal $inner:ident) => {
        fn conceal(&self, id: $crate::forward::RecordId, bytes: Vec<u8>) -> Vec<u8> {
            self.$inner.conceal(id, bytes)
        }
    };
    (@reveal $inner:ident) => {
        fn reveal(
            &self,
            id: $crate::forward::RecordId,
            bytes: Vec<u8>,
        ) -> Result<Vec<u8>, $crate::StoreError> {
            self.$inner.reveal(id, bytes)
        }
    };
    (@encrypts $inner:ident) => {
        fn encrypts(&self) -> bool { self.$inner.encrypts() }
    };
    (@probe $inner:ident) => {
        $crate::forward_store!(@0 $inner probe() -> ());
    };
    (@close $inner:ident) => {
        fn close<'s, 'a>(&'s self) -> $crate::forward::Closing<'a>
        where
            's: 'a,
            Self: 'a,
        {
            self.$inner.close()
        }
    };
    (@sealed $inner:ident) => {
        fn sealed(&self, change: $crate::forward::Change) -> $crate::forward::Change {
            self.$inner.sealed(change)
        }
    };
    (@sealed_note $inner:ident) => {
        fn sealed_note(&self, entry: $crate::forward::JournalEntry) -> $crate::forward::JournalEntry {
            self.$inner.sealed_note(entry)
        }
    };
    (@outbox $inner:ident) => {
        fn outbox(&self) -> Option<$crate::forward::Arc<dyn $crate::Outbox>> { self.$inner.outbox() }
    };
    (@wakeups $inner:ident) => {
        fn wakeups(&self) -> $crate::forward::Receiver<$crate::forward::RecordId> { self.$inner.wakeups() }
    };

    // An async method: so many of its arguments, the first ones, are references.
    (@0 $inner:ident $name:ident($($arg:ident: $type:ty),*) -> $out:ty) => {
        fn $name<'s, 'a>(&'s self $(, $arg: $type)*) -> $crate::forward::Answer<'a, $out>
        where
            's: 'a,
            Self: 'a,
        {
            self.$inner.$name($($arg),*)
        }
    };
    (@1 $inner:ident $name:ident($first:ident: $of:ty $(, $arg:ident: $type:ty)*) -> $out:ty) => {
        fn $name<'s, 'f, 'a>(
            &'s self, $first: &'f $of $(, $arg: $type)*
        ) -> $crate::forward::Answer<'a, $out>
        where
            's: 'a,
            'f: 'a,
            Self: 'a,
        {
            self.$inner.$name($first $(, $arg)*)
        }
    };
    (@2 $inner:ident $name:ident(
        $first:ident: $of:ty, $second:ident: $too:ty $(, $arg:ident: $type:ty)*) -> $out:ty) => {
        fn $name<'s, 'f, 'g, 'a>(
            &'s self, $first: &'f $of, $second: &'g $too $(, $arg: $type)*
        ) -> $crate::forward::Answer<'a, $out>
        where
            's: 'a,
            'f: 'a,
            'g: 'a,
            Self: 'a,
        {
            self.$inner.$name($first, $second $(, $arg)*)
        }
    };
}
