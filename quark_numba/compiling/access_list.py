"""The users who may write to a folder on Windows, from its access list: which accounts are trusted, and which rights only
read."""

from __future__ import annotations

import ctypes
import errno
import os
import re
from pathlib import Path
from typing import Any

# From the texts of access lists (Microsoft, "Security Descriptor String Format"): the rights to read, as names and as bits, and
# those who may do anything anyway: the system, administrators, the installer and, in inherited entries, the creator and the
# owner.
_READ_NAMES, _READ_BITS = {"FR", "FX", "GR", "GX", "RC", "CC", "SW", "WP", "LO"}, 0xA012_00A9
_INSTALLER = "S-1-5-80-956008885-3418522649-1831038044-1853292631-2271478464"
_SYSTEM_ACCOUNTS = {"SY", "BA", "LA", "CO", "OW", "S-1-5-18", "S-1-5-32-544", "S-1-3-0", "S-1-3-4", _INSTALLER}

_NAMES = {"WD": "everyone", "AU": "all who log in", "BU": "all users", "AN": "anonymous users"}

_OWNER = re.compile(r"O:(S-[0-9-]+|[A-Z]{2})")
_ENTRY = re.compile(r"\(([A-Z]+);[^;]*;([^;]*);[^;]*;[^;]*;([^;)]*)")

# Numbers of Microsoft: SE_FILE_OBJECT; OWNER_ and DACL_SECURITY_INFORMATION; TOKEN_QUERY; TokenUser.
_FILE, _OWNER_AND_LIST, _QUERY, _USER = 1, 1 | 4, 8, 1


def check_own(folder: Path) -> None:
    """Raise PermissionError if anyone but this user and the system may write to a folder, unless it is in the profile of this
    user."""
    if Path(os.path.expanduser("~")) not in folder.parents:
        others = writers(_text_of(folder), _this_user())
        if others:
            names = ", ".join(_NAMES.get(each, each) for each in others)
            raise PermissionError(errno.EPERM, f"others can write to it: {names}")


def writers(text: str, user: str) -> list[str]:
    """Return those who own a folder or may write to it, apart from a user and the system. `text` has the owner and the access
    list."""
    owner = _OWNER.match(text)
    entries = _ENTRY.findall(text.partition("D:")[2])
    found = [owner[1] if owner else "an unknown owner"]
    found += [who for kind, rights, who in entries if kind in ("A", "OA", "XA", "ZA") and not _only_reads(rights)]
    if not entries:  # without a list, everybody may do anything
        found.append("everybody")
    return [who for who in dict.fromkeys(found) if who not in _SYSTEM_ACCOUNTS | {user}]


def _only_reads(rights: str) -> bool:
    if rights[:1].isdigit():
        return not int(rights, 0) & ~_READ_BITS
    return {rights[at : at + 2] for at in range(0, len(rights), 2)} <= _READ_NAMES


def _text_of(folder: Path) -> str:
    descriptor, text = ctypes.c_void_p(), ctypes.c_wchar_p()
    library = _library()
    code = library.GetNamedSecurityInfoW(str(folder), _FILE, _OWNER_AND_LIST, *[None] * 4, ctypes.byref(descriptor))
    if code:
        raise PermissionError(errno.EPERM, f"its access list cannot be read (error {code})")
    to_text = library.ConvertSecurityDescriptorToStringSecurityDescriptorW
    if not to_text(descriptor, 1, _OWNER_AND_LIST, ctypes.byref(text), None):
        raise PermissionError(errno.EPERM, "its access list cannot be read")
    return text.value or ""


def _this_user() -> str:
    kernel, token, size, text = ctypes.WinDLL("kernel32"), ctypes.c_void_p(), ctypes.c_ulong(), ctypes.c_wchar_p()  # type: ignore[attr-defined]
    kernel.GetCurrentProcess.restype = ctypes.c_void_p
    library = _library()
    library.OpenProcessToken(ctypes.c_void_p(kernel.GetCurrentProcess()), _QUERY, ctypes.byref(token))
    library.GetTokenInformation(token, _USER, None, 0, ctypes.byref(size))
    content = ctypes.create_string_buffer(size.value)
    library.GetTokenInformation(token, _USER, content, size, ctypes.byref(size))
    library.ConvertSidToStringSidW(ctypes.c_void_p.from_buffer(content), ctypes.byref(text))
    kernel.CloseHandle(token)
    return text.value or ""


def _library() -> Any:
    return ctypes.WinDLL("advapi32")  # type: ignore[attr-defined]
