//! Columns.

use super::text::{Paint, Style};

/// Rows under a heading, each column as wide as its widest cell.
#[derive(Debug)]
pub(super) struct Table {
    columns: Vec<Column>,
    rows: Vec<Vec<Cell>>,
}

#[derive(Debug)]
struct Column {
    name: &'static str,
    right: bool,
}

/// One field of a row.
#[derive(Debug)]
pub(super) struct Cell {
    text: String,
    paint: Paint,
}

impl Cell {
    #[expect(clippy::needless_pass_by_value, reason = "whatever can be shown may be given")]
    pub(super) fn new(text: impl ToString, paint: Paint) -> Self {
        Self { text: text.to_string(), paint }
    }

    fn width(&self) -> usize {
        self.text.chars().count()
    }
}

impl From<String> for Cell {
    fn from(text: String) -> Self {
        Self { text, paint: Paint::Plain }
    }
}

impl From<&str> for Cell {
    fn from(text: &str) -> Self {
        text.to_owned().into()
    }
}

impl Table {
    /// A column whose name begins with `>` holds numbers and is set to the right.
    pub(super) fn new(columns: &[&'static str]) -> Self {
        let column = |name: &&'static str| match name.strip_prefix('>') {
            Some(name) => Column { name, right: true },
            None => Column { name, right: false },
        };
        Self { columns: columns.iter().map(column).collect(), rows: Vec::new() }
    }

    /// An empty cell is shown as `-`, so that columns can be counted.
    pub(super) fn row<const N: usize>(&mut self, cells: [Cell; N]) {
        debug_assert_eq!(N, self.columns.len());
        let fill = |mut cell: Cell| {
            if cell.text.is_empty() {
                cell.text.push('-');
            }
            cell
        };
        self.rows.push(cells.into_iter().map(fill).collect());
    }

    pub(super) fn print(&self, style: Style) -> String {
        let heading = self.columns.iter().map(|column| Cell::new(column.name, Paint::Bold));
        let heading: Vec<Cell> = heading.collect();
        let rows = || std::iter::once(&heading).chain(&self.rows);
        let widths: Vec<usize> = (0..self.columns.len())
            .map(|index| rows().map(|row| row[index].width()).max().unwrap_or(0))
            .collect();
        rows().map(|row| self.line(row, &widths, style)).collect()
    }

    fn line(&self, row: &[Cell], widths: &[usize], style: Style) -> String {
        let mut line = String::new();
        for ((cell, column), width) in row.iter().zip(&self.columns).zip(widths) {
            let padding = " ".repeat(width - cell.width());
            let text = style.paint(cell.paint, &cell.text);
            let text = if column.right { padding + &text } else { text + &padding };
            line.push_str(&text);
            line.push_str("  ");
        }
        line.truncate(line.trim_end().len());
        line.push('\n');
        line
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned_whatever_they_hold() {
        let mut table = Table::new(&["NAME", ">SIZE", "NOTE"]);
        table.row(["ä".into(), "7B".into(), "".into()]);
        table.row(["longer".into(), "1.00Gi".into(), "x".into()]);
        let expected = "\
NAME      SIZE  NOTE
ä           7B  -
longer  1.00Gi  x
";
        assert_eq!(table.print(Style::default()), expected);
    }

    #[test]
    fn colour_takes_no_room() {
        let mut table = Table::new(&["A", "B"]);
        table.row([Cell::new("xx", Paint::Bad), "y".into()]);
        table.row(["x".into(), "y".into()]);
        let colored = table.print(Style { color: true });
        let plain = table.print(Style { color: false });
        assert_ne!(colored, plain);
        let stripped = ["\x1b[1m", "\x1b[31m", "\x1b[0m"]
            .iter()
            .fold(colored, |text, code| text.replace(code, ""));
        assert_eq!(stripped, plain);
    }
}
