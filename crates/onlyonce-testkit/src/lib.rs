//! What the tests of OnlyOnce share. Never shipped.
//!
//! [`promise`] judges a history of what clients sent and heard and of what an API executed. It depends on
//! nothing else of OnlyOnce, on purpose: a rule that is wrong in the program cannot be wrong here in the same
//! way.

pub mod promise;
