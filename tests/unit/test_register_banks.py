"""What `benchmarks.register_banks` says of machine code."""

from __future__ import annotations

from benchmarks.register_banks import blocks_of, lost


def fma(to: int, *operands: str) -> str:
    return f"FFMA R{to}, {', '.join(operands)}"


def test_blocks_end_at_branches_and_labels():
    text = """
        /*0000*/                   IADD3 R1, R2, R3, RZ ;
.L_x_1:
        /*0010*/                   FFMA R4, R5.reuse, R6, R7 ;
        /*0020*/               @P0 BRA `(.L_x_1) ;
        /*0030*/                   EXIT ;
"""
    found = list(blocks_of(text))
    assert [(each.begin, len(each.code), each.multiplications) for each in found] == [
        (0, 1, 0),
        (1, 2, 1),
        (3, 1, 0),
    ]


def test_sums_in_the_other_bank_cost_nothing():
    assert lost([fma(1, "R8.reuse", "R2", "R1"), fma(3, "R8", "R4", "R3"), "NOP", "NOP"]) == 0


def test_three_registers_of_a_bank_cost_cycles():
    # 8 x 3 reads of one bank in 8 + 16 cycles.
    assert lost([fma(2 * i, "R40", "R42", f"R{2 * i}") for i in range(8)]) == 16


def test_a_register_that_is_kept_is_read_once():
    kept = [fma(2 * i, "R40.reuse", "R42.reuse", f"R{2 * i}") for i in range(8)]
    assert lost(kept) == 2  # of the first one, which reads all three


def test_other_instructions_give_banks_time():
    code = [line for i in range(8) for line in (fma(2 * i, "R40", "R41", f"R{2 * i}"), "NOP")]
    assert lost(code) == 0
