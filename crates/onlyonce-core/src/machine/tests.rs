//! The machine against the design: each edge by itself, everything that is possible in one sweep, and
//! random histories. What holds of every change is written down once, in `invariants`.

mod admit;
mod events;
mod evidence;
mod exhaustive;
mod expire;
mod invariants;
mod sequences;
mod settle;
mod table;
mod world;
