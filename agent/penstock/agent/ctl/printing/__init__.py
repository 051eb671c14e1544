"""What commands print: lines, tables, JSON and YAML."""
