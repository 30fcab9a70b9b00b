"""Small images for the tests, made from programs of the distribution."""
import os
import pathlib
import re
import shutil
import subprocess

BUSYBOX = "/bin/busybox"


def libraries(program):
    """Shared libraries (and loader) that a program needs."""
    output = subprocess.run(["ldd", program], capture_output=True, text=True).stdout
    return re.findall(r"(/\S+)", output)


def copy_program(root, program, to):
    target = root / to.lstrip("/")
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy2(os.path.realpath(program), target)
    for library in libraries(program):
        place = root / library.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        if not place.exists():
            shutil.copy2(os.path.realpath(library), place)


def busybox_tree(root, shell):
    """A tree with busybox applets and /bin/sh as asked: 'ash' (busybox's own) or 'dash'."""
    root = pathlib.Path(root)
    for name in ("bin", "etc", "tmp", "root", "usr"):
        (root / name).mkdir(parents=True, exist_ok=True)
    shutil.copy2(BUSYBOX, root / "bin/busybox")
    applets = subprocess.run([BUSYBOX, "--list"], capture_output=True, text=True,
                             check=True).stdout.split()
    for applet in applets:
        link = root / "bin" / applet
        if applet in ("busybox", "bash", "ash", "hush", "sh"):
            continue
        link.symlink_to("busybox")
    if shell == "dash":
        copy_program(root, "/bin/dash", "/bin/dash")
        (root / "bin/sh").symlink_to("dash")
    else:
        (root / "bin/sh").symlink_to("busybox")
        (root / "bin/ash").symlink_to("busybox")
    (root / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/sh\n"
                                     "app:x:500:501:App:/home/app:/bin/sh\n")
    (root / "etc/group").write_text("root:x:0:\napp:x:501:\nextra:x:600:app\n")
    (root / "home/app").mkdir(parents=True)
    os.chown(root / "home/app", 500, 501)
    (root / "notexec").write_text("not a program\n")
    (root / "notexec").chmod(0o644)
    return root


def single_tree(root, program):
    """An image that holds one static program and nothing else."""
    root = pathlib.Path(root)
    root.mkdir(parents=True, exist_ok=True)
    shutil.copy2(program, root / "single")
    return root
