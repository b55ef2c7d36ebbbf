//! Integration tests of Coroner for Android, in real Java processes on this machine.

mod java;
