"""Builds the stranger's project as a stranger would: Meson, the SDK's .pc file, and nothing else of ours.

Arguments: meson, the project, the build folder, the folder of trainer-sdk.pc, a file to touch when all is done.
"""

import os
import pathlib
import subprocess
import sys


def main(meson, project, build, package, stamp):
    # The build tree's own variables would let a stranger find what only we have.
    env = {key: value for key, value in os.environ.items() if key not in ("LD_LIBRARY_PATH", "CXXFLAGS", "LDFLAGS")}
    env["PKG_CONFIG_PATH"] = package
    again = ["--reconfigure"] if pathlib.Path(build, "build.ninja").exists() else []  # the SDK may be another
    for command in ([meson, "setup", *again, build, project], [meson, "compile", "-C", build]):
        done = subprocess.run(command, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        if done.returncode != 0:
            sys.exit(f"{' '.join(command)}\n{done.stdout}")
    pathlib.Path(stamp).touch()


if __name__ == "__main__":
    main(*sys.argv[1:])
