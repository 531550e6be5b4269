"""The language: text to `dnc.ir.program.Program`, with every mistake reported at its place."""
