"""`sass` and `sass_counts`: what they tell of the operators' machine code, and how they show it."""

import pytest

import labkit
from labkit import build, disassembly, figures, machine, machine_code, results, sass_figure
from labkit.cubin import NoCompiler, compile_cubin
from labkit.machine_code import Code

needs_tools = pytest.mark.skipif(machine.find_nvcc() is None or machine.find_cuda_tool("nvdisasm") is None,
                                 reason="nvcc or nvdisasm is not installed")
FORWARD = "Forward< bfloat16"

# As nvdisasm prints: a loop with an inlined function of a header of the repository's, and one of CUDA's; a routine.
PRINTED = """
	.section	.text._Z1kPf,"ax",@progbits
	.align	128
        .type           _Z1kPf,@function
_Z1kPf:
.text._Z1kPf:
	//## File "/repo/kernels/k.cu", line 3
        /*0000*/                   HFMA2.MMA R1, -RZ, RZ, 0, 1 ;
.L_x_1:
	//## File "/cuda/bin/../include/cuda_bf16.hpp", line 585 inlined at "/repo/kernels/include/a.cuh", line 9
	//## File "/repo/kernels/include/a.cuh", line 9 inlined at "/repo/kernels/k.cu", line 4
	//## File "/repo/kernels/k.cu", line 4
        /*0010*/              @!P0 LDG.E.128.SYS R4, [R2] ;
        /*0020*/                   CALL.REL.NOINC `($__internal_0_$__cuda_sm20_div_rn_f64_full) ;
	//## File "/repo/kernels/k.cu", line 5
        /*0030*/              @UP1 BRA `(.L_x_1) ;
        /*0040*/                   EXIT ;
        .weak           $__internal_0_$__cuda_sm20_div_rn_f64_full
$__internal_0_$__cuda_sm20_div_rn_f64_full:
        /*0050*/                   NOP ;
        /*0060*/                   RET.REL.NODEC R8 `(_Z1kPf) ;
.L_x_7:
        /*0070*/                   BRA `(.L_x_7);
        /*0080*/                   NOP;
.L_x_9:

	.section	.text._Z1jPf,"ax",@progbits
.text._Z1jPf:
        /*0000*/                   EXIT ;

//--------------------- SYMBOLS --------------------------
	.type		.nv.reservedSmem.offset0,@object
"""


@pytest.fixture
def source_of_k(tmp_path):
    """PRINTED with its repository in a temporary folder."""
    (tmp_path / "include").mkdir()
    (tmp_path / "k.cu").write_text("\n\nfloat sum = 1;\nsum += a(x[i]);\n} while (i < n);\n")
    (tmp_path / "include" / "a.cuh").write_text(8 * "\n" + "    return b(x) < 1;\n")
    return disassembly.parse(PRINTED.replace("/repo/kernels", str(tmp_path)), [tmp_path])


def test_a_listing_has_addresses_for_labels_and_the_innermost_line_of_the_repository(source_of_k, tmp_path):
    k, a, routine = (tmp_path / "k.cu", 3), (tmp_path / "include" / "a.cuh", 9), "__cuda_sm20_div_rn_f64_full"
    assert [(one.address, one.text, one.place, one.routine) for one in source_of_k["_Z1kPf"]] == [
        (0x00, "HFMA2.MMA R1, -RZ, RZ, 0, 1", k, ""),
        (0x10, "@!P0 LDG.E.128.SYS R4, [R2]", a, ""),
        (0x20, f"CALL.REL.NOINC {routine}", a, ""),
        (0x30, "@UP1 BRA 0x0010", (tmp_path / "k.cu", 5), ""),
        (0x40, "EXIT", (tmp_path / "k.cu", 5), ""),
        (0x50, "NOP", None, routine),
        (0x60, "RET.REL.NODEC R8", None, routine)]
    assert [one.text for one in source_of_k["_Z1jPf"]] == ["EXIT"]


@pytest.mark.parametrize("text, kind", [
    ("@!P0 LDG.E.128 R8, desc[UR10][R8.64]", "16 bytes"), ("STG.E.EF.128 desc[UR4][R2.64], R4", "16 bytes"),
    ("LDS.128 R4, [R0]", "16 bytes"), ("LDG.E.64 R4, [R2]", None), ("STL.128 [R1], R4", "local memory"),
    ("LDL R0, [R1+0x4]", "local memory"), ("FFMA R0, R1, R2, R3", "fused"), ("FFMA.FTZ R0, R1, R2, R3", "fused"),
    ("HFMA2.BF16_V2 R0, R1, R2, R3", "fused"), ("HFMA2.MMA R9, -RZ, RZ, 0, 0", "constant"), ("IMAD R0, R1, R2, R3", None),
    ("MUFU.TANH R0, R0", "special function"), ("F2FP.BF16.F32.PACK_AB R0, RZ, R0", "conversion"),
    ("HADD2.F32 R3, -RZ, R2.H0_H0", "conversion"), ("HADD2 R3, R1, R2", None), ("@P0 BRA 0x0dd0", "branch"),
    ("BSYNC B0", None), ("BAR.SYNC.DEFER_BLOCKING 0x0", "barrier"), ("FMUL R0, R1, R2", None)])
def test_instructions_are_classed_by_what_a_reader_looks_for(text, kind):
    assert disassembly.class_of(text) == kind


@pytest.mark.parametrize("opcode, width", [
    ("LDG.E.128", 16), ("LDG.E.64.CONSTANT", 8), ("LDG.E", 4), ("LDS", 4), ("LDG.E.U16.SYS", 2), ("LDG.E.S8", 1),
    ("STG.E.EF.128", 16), ("LDG.E.LTC128B.64", 8), ("LDG.E.ENL2.256", 32), ("LDGSTS.E.BYPASS.128", 16)])
def test_an_access_has_the_bytes_of_its_opcode(opcode, width):
    assert machine_code._bytes(opcode) == width


# ---- what the compiler makes of the operators ----

def counted(kernels, arch="sm_90"):
    return {row["variant"]: row for row in labkit.sass_counts("sass", kernels, "Title", arch=arch)}


@needs_tools
def test_the_versions_of_gelu_are_in_machine_code_what_their_names_say(session, capsys):
    rows = counted({**{f"v{v}": Code("gelu", None, f"v{v}::kernel Forward<ByTanh<ExactTanh {FORWARD}") for v in (1, 4)},
                    **{f"v{v}": Code("gelu", None, f"v4::kernel v{v}:: {FORWARD}") for v in (6, 7)}})
    assert rows["v1"]["global loads, bytes"] == rows["v1"]["global stores, bytes"] == "2"
    for version in ("v4", "v6", "v7"):  # a vector, and one of the elements after the last
        assert rows[version]["global loads, bytes"] == rows[version]["global stores, bytes"] == "16, 2", version
    elements = 8 + 1
    assert rows["v6"]["special functions"] == f"{elements} × TANH"
    assert rows["v7"]["special functions"] == f"{elements} × EX2, {elements} × RCP"
    assert rows["v1"]["special functions"] == "EX2, RCP"  # tanhf is no instruction
    assert rows["v6"]["instructions"] < 0.6 * rows["v4"]["instructions"]
    assert rows["v6"]["fused (FFMA)"] == elements  # of x (1 + B x^2): the sum is fused
    assert "by nvcc" in session().tables["sass"]["title"] and "for sm_90. Compiled, not run" in capsys.readouterr().out


@needs_tools
def test_flags_change_the_polynomial_and_the_tanh():
    words = f"v1:: {FORWARD}"
    rows = counted({"plain": Code("gelu", 1, words), "no fmad": Code("gelu", 1, words, ["-fmad=false"]),
                    "fast": Code("gelu", 1, words, ["--use_fast_math"])})
    plain, apart, fast = rows["plain"], rows["no fmad"], rows["fast"]
    # One of the polynomial's is taken apart; tanhf, which comes fused from CUDA's library, keeps its own.
    assert apart["fused (FFMA)"] == plain["fused (FFMA)"] - 1 and apart["FMUL, FADD"] == plain["FMUL, FADD"] + 2
    assert fast["special functions"] == "TANH" and fast["fused (FFMA)"] == 1
    without_tanhf = counted({"v6": Code("gelu", 6, f"v4:: {FORWARD}", ["-fmad=false"])})["v6"]
    assert without_tanhf["fused (FFMA)"] == 0


@needs_tools
def test_what_moves_or_converts_a_value_is_not_counted_as_arithmetic():
    """Half to float is an HADD2, and a constant may be an HFMA2: a kernel that computes in float has neither."""
    words = "v4::kernel v7:: Forward< half"
    opcodes = [one.opcode for one in labkit.sass("gelu", None, words, arch="sm_90")]
    assert opcodes.count("HADD2.F32") == 9
    row = counted({"half": Code("gelu", None, words)})["half"]
    assert row["fused (FFMA)"] > 0 and "16-bit arithmetic" not in row


@needs_tools
def test_shared_memory_barriers_and_turings_names():
    row = counted({"tile": Code("transpose", None, "v4:: float>")})["tile"]
    assert row["shared loads, bytes"] == "4 × 16" and row["barriers"] == 1 and "local memory" not in row
    assert row["special functions"] == "–" and row["fused (FFMA)"] == 0  # always there, to be seen to be empty
    turing = counted({"one": Code("copy", None, "v1::kernel<1, bfloat16")}, arch="sm_75")["one"]
    assert turing["global loads, bytes"] == "2"


@needs_tools
def test_a_listing_shows_the_load_beside_the_line_that_asks_for_it(session, capsys):
    instructions = labkit.sass("gelu", None, f"v4:: ExactTanh {FORWARD}", arch="sm_90")
    wide = next(one for one in instructions if one.opcode == "LDG.E.128")
    path, line = wide.place
    assert path.name == "vec.cuh" and "reinterpret_cast<const uint4*>(p)" in path.read_text().splitlines()[line - 1]
    assert instructions[-1].text == "EXIT"
    shown = capsys.readouterr().out
    assert "v4::kernel<Forward<ByTanh<ExactTanh>>, __nv_bfloat16>: " in shown and "instructions, " in shown
    after = shown[shown.index(f"vec.cuh:{line}  const uint4 raw"):].splitlines()
    assert after[1].strip().startswith(f"{wide.address:04x}  LDG.E.128") and after[1].endswith("<- 16 bytes")
    record, = session().tables.values()
    assert sum(len(block["code"]) for block in record["blocks"]) == len(instructions)


@needs_tools
def test_a_compile_error_and_an_unknown_kernel_are_not_hidden_behind_a_record():
    with pytest.raises(build.BuildError, match="no-such-flag"):
        labkit.sass("copy", 1, "v1:: float>", flags=["--no-such-flag"])
    with pytest.raises(ValueError, match="none does"):
        labkit.sass("copy", 1, "v2::")


# ---- where there is no compiler, and what is shown ----

def test_without_the_tools_the_record_of_the_same_code_is_shown(session, monkeypatch, capsys, source_of_k):
    monkeypatch.setattr(machine, "find_nvcc", lambda: None)
    assert labkit.sass("gelu", 1, "v1:: float>") == []
    assert labkit.sass_counts("counts", {"v1": Code("gelu", 1, "v1:: float>")}, "Title") == []
    assert capsys.readouterr().out.count("there is no nvcc here") == 2

    listing = sass_figure.record("k: 7 instructions", source_of_k["_Z1kPf"])
    asked = []
    monkeypatch.setattr(results, "recorded", lambda lab, name: asked.append(name) or results.Recorded(
        {"name": "NVIDIA T4"}, {"versions": {}, "date": "2026-01-02T"}, listing))
    assert labkit.sass("gelu", 1, "v1:: float>", flags=["-fmad=false"]) == []
    shown = capsys.readouterr().out
    assert asked == ["sass_gelu_v1_v1_float_fmad_false"]
    assert "Recorded on NVIDIA T4" in shown and "a.cuh:9  return b(x) < 1;\n    0010  @!P0 LDG.E.128.SYS" in shown


@pytest.mark.skipif(machine.find_nvcc() is None, reason="nvcc is not installed")
def test_registers_are_told_without_nvdisasm_and_instructions_are_not(monkeypatch):
    cubin = compile_cubin("copy", version=1)
    monkeypatch.setattr(machine, "find_cuda_tool", lambda name: None)
    assert cubin.kernels[0].registers > 0
    with pytest.raises(NoCompiler, match="there is no nvdisasm here"):
        cubin.code(cubin.kernels[0])


def test_the_architecture_is_that_of_the_gpu_or_hoppers(monkeypatch):
    asked = []

    def compiled(name, version, arch, flags):
        asked.append(arch)
        raise NoCompiler("enough")

    monkeypatch.setattr(machine_code, "compile_cubin", compiled)
    monkeypatch.setattr(machine_code, "show_recorded", lambda *arguments: [])
    for gpu in ({"capability": "12.0"}, None):
        monkeypatch.setattr(machine, "gpu", lambda: gpu)
        labkit.sass("gelu", 1, "v1::")
    labkit.sass("gelu", 1, "v1::", arch="sm_80")
    assert asked == ["sm_120", "sm_90", "sm_80"]


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_listing_as_a_page_marks_kinds_in_words_and_folds_what_is_long(source_of_k, open_figure, tmp_path, theme):
    long = {"place": "k.cu:8", "source": "y = f<float>(x);",
            "code": [[16 * k, "FFMA R0, R1, R2, R3"] for k in range(sass_figure.MOST + 5)]}
    listing = sass_figure.record("k", source_of_k["_Z1kPf"])
    listing["blocks"].append(long)
    results._validate(listing, "a listing", part="table")
    (tmp_path / "listing.html").write_text(figures.figure(listing))
    page = open_figure(tmp_path / "listing.html", theme=theme)
    assert page.get_by_text("y = f<float>(x);").is_visible()
    assert page.locator(".one").filter(has_text="LDG.E.128").get_attribute("data-kind") == "16 bytes"
    assert page.locator(".one:visible").count() == 7 + sass_figure.MOST
    page.get_by_text("5 more: 5 × fused").click()
    assert page.locator(".one:visible").count() == 7 + sass_figure.MOST + 5
    page.set_viewport_size({"width": 360, "height": 800})  # a phone: nothing is wider than the page
    assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
