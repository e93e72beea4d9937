//! stub
pub mod body;
pub mod seam;
