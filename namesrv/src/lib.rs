//! namesrv
