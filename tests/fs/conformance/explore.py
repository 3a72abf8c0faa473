import importlib, sys, tempfile, time
from pathlib import Path
from fs.conformance.comparison import differences, unpack_all
from fs.conformance.references import Containerd, Umoci
def main():
    cases = []
    for arg in sys.argv[1:]:
        module, name = arg.split(":")
        cases += getattr(importlib.import_module("fs.conformance." + module), name)
    with tempfile.TemporaryDirectory(prefix="cf") as d:
        folder = Path(d)
        t = time.time()
        with Containerd.running(folder / "c") as daemon:
            got = unpack_all(folder, {f"c{i}": case.layers for i, case in enumerate(cases)}, Umoci(folder), daemon)
            print("seconds", time.time() - t, len(cases))
            same = 0
            for i, case in enumerate(cases):
                o = got[f"c{i}"]
                lines = []
                for who in ("umoci", "containerd"):
                    r = getattr(o, who)
                    if r.tree is None and o.coldstart.tree is None: continue
                    if r.tree is None: lines.append(f"   {who} REFUSES {r.refusal[-150:]}")
                    elif o.coldstart.tree is None: lines.append(f"   {who} accepts: " + str({k.decode('utf8','backslashreplace'): (oct(v.mode), v.content[:9], v.target) for k, v in r.tree.items()})[:400])
                    else:
                        d = differences(o.coldstart.tree, r.tree, o.started_ns)
                        if d:
                            lines.append(f"   {who} {d}")
                            for k, what in list(d.items())[:4]:
                                kk = b"" if k=="/" else k.encode('utf8','surrogateescape')
                                if what in ("extra","missing"): continue
                                lines.append("      " + ", ".join(f"{w}: {str(getattr(o.coldstart.tree[kk],w))[:90]} / {str(getattr(r.tree[kk],w))[:90]}" for w in what.split()) if kk in r.tree and kk in o.coldstart.tree else "")
                if o.coldstart.tree is None: print(f"REFUSED {case.sentence}: {o.coldstart.refusal}")
                if lines:
                    print(case.sentence); print("\n".join(lines))
                elif o.coldstart.tree is not None: same += 1
            print("same", same)
main()
