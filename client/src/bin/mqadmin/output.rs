//! Text for people, JSON for programs.

use std::io::{IsTerminal, Write};

use comfy_table::{Table, presets};
use mq_protocol::v2;

use crate::outcome::{Failure, Outcome};

/// Writes a line to the standard output. A reader that is gone ends the command.
pub(crate) fn line(text: impl AsRef<[u8]>) -> Outcome {
    let mut out = std::io::stdout().lock();
    let written = out.write_all(text.as_ref()).and_then(|()| out.write_all(b"\n"));
    written.map_err(Failure::failed)
}

pub(crate) fn json(value: &serde_json::Value) -> Outcome {
    line(value.to_string())
}

/// Rows under a heading; without frames when it does not go to a terminal.
pub(crate) fn table(heading: &[&str], rows: Vec<Vec<String>>) -> Outcome {
    let terminal = std::io::stdout().is_terminal();
    let mut table = Table::new();
    let style = if terminal { presets::UTF8_FULL_CONDENSED } else { presets::NOTHING };
    table.load_style(style).set_header(heading.to_vec()).add_rows(rows);
    if terminal {
        return line(table.trim_fmt());
    }
    // Without frames the margin before the first column has no use.
    table.trim_fmt().lines().try_for_each(|row| line(row.strip_prefix(' ').unwrap_or(row)))
}

pub(crate) fn message_type_name(value: u32) -> &'static str {
    let known = i32::try_from(value).ok().and_then(|value| v2::MessageType::try_from(value).ok());
    known.unwrap_or_default().as_str_name()
}

/// RocketMQ's way to show a permission: 2 = write, 4 = read.
pub(crate) fn permission_name(value: u32) -> String {
    let mut text = String::new();
    text.push(if value & 4 != 0 { 'R' } else { '-' });
    text.push(if value & 2 != 0 { 'W' } else { '-' });
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_types_and_permissions() {
        assert_eq!(message_type_name(2), "FIFO");
        assert_eq!(message_type_name(99), "MESSAGE_TYPE_UNSPECIFIED");
        assert_eq!(permission_name(6), "RW");
        assert_eq!(permission_name(4), "R-");
    }
}
