"""Builds the stranger's project as a stranger would: the SDK is installed under a folder of its own, and Meson gets the
.pc file of that installation and nothing else of ours.

Arguments: meson, the project, the build folder, our build folder (what is installed), the folder to install into, a
file to touch when all is done, our sanitizers or "none": the strangers get them too, or our program would refuse them;
the folder of our own plugins, of which two are built as a third party would.
"""

import os
import pathlib
import subprocess
import sys

TAGS = "devel,sdk"  # headers, the .pc file and the library's name for linking; the library


def call(command, env):
    done = subprocess.run(command, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}\n{done.stdout}")
    return done.stdout


def install(meson, ours, stage, env):
    """Installs the SDK; returns the folder of its .pc file and its prefix as it lies under `stage`."""
    call([meson, "install", "-C", ours, "--no-rebuild", "--only-changed", "--tags", TAGS, "--destdir", stage], env)
    package = next(stage.rglob("trainer-sdk.pc"))
    prefix = next(line for line in package.read_text().splitlines() if line.startswith("prefix="))
    return package.parent, stage / pathlib.PurePath(prefix.removeprefix("prefix=")).relative_to("/")


def require_installed(build, ours, prefix):
    """What was compiled and linked came from the installation: no path of our trees is in the commands or was read."""
    source = pathlib.Path(__file__).resolve().parents[2]
    known = (build / "compile_commands.json").read_text() + (build / "build.ninja").read_text()
    lines = call(["ninja", "-C", build, "-t", "deps"], None).splitlines()
    read = "".join(f"{(build / line.strip()).resolve()}\n" for line in lines if line.startswith("    "))
    if f"{prefix}/include/trainer/sdk/abi.h" not in read or f"{prefix}/lib" not in known:
        sys.exit(f"{build}: the SDK that is installed in {prefix} was not used")
    for path in (source / "framework", pathlib.Path(ours, "framework"), pathlib.Path(ours, "meson-uninstalled")):
        if str(path) in known + read:
            sys.exit(f"{build}: {path} was used, which no stranger has")


def main(meson, project, build, ours, stage, stamp, sanitizers="none", plugins=None):
    build, stage = pathlib.Path(build).resolve(), pathlib.Path(stage).resolve()
    # The build tree's own variables would let a stranger find what only we have.
    hidden = ("LD_LIBRARY_PATH", "CXXFLAGS", "LDFLAGS", "PKG_CONFIG_PATH", "DESTDIR")
    env = {key: value for key, value in os.environ.items() if key not in hidden}
    package, prefix = install(meson, ours, stage, env)
    env["PKG_CONFIG_LIBDIR"] = str(package)
    env["PKG_CONFIG"] = f"pkg-config --define-variable=prefix={prefix}"
    again = ["--wipe"] if (build / "build.ninja").exists() else []  # the SDK may be another
    checked = [] if sanitizers == "none" else [f"-Db_sanitize={sanitizers}", "-Db_lundef=false"]
    own = [f"-Down_plugins={plugins}"] if plugins else []
    call([meson, "setup", *again, *checked, *own, build, project], env)
    call([meson, "compile", "-C", build], env)
    require_installed(build, ours, prefix)
    pathlib.Path(stamp).touch()


if __name__ == "__main__":
    main(*sys.argv[1:])
