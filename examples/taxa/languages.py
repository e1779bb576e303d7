"""The languages of the task and their taxonomy: language, branch, family.

Branches and families are those on which handbooks agree (Glottolog, Ethnologue). One rule makes the gaps at the upper
ranks: a group that would hold one language of this table alone is left out, as its name would only repeat the
language. So Hungarian has a family and no branch here (its next kin, Khanty and Mansi, are not in the table), and
Basque, an isolate, Esperanto, which was constructed, and Vietnamese, the only Austroasiatic language here, have neither.
"""

from typing import NamedTuple

RANKS = ("language", "branch", "family")  # from the leaf of the tree to its root
NULL = "null"  # no label at this rank; its index is NULL_INDEX in every rank
NULL_INDEX = 0


class Group(NamedTuple):
    """The languages of a branch, by the codes of CLDR."""

    family: str | None
    branch: str | None
    codes: tuple[str, ...]


GROUPS = (
    Group("Indo-European", "Germanic", ("af", "da", "de", "en", "fo", "fy", "gsw", "is", "lb", "nl", "no", "sv")),
    Group("Indo-European", "Romance", ("ast", "ca", "es", "fr", "gl", "it", "pt", "rm", "ro", "sc")),
    Group(
        "Indo-European",
        "Slavic",
        ("be", "bg", "bs", "cs", "dsb", "hr", "hsb", "mk", "pl", "ru", "sk", "sl", "sr", "uk"),
    ),
    Group("Indo-European", "Baltic", ("lt", "lv")),
    Group("Indo-European", "Celtic", ("br", "cy", "ga", "gd")),
    Group("Indo-European", "Iranian", ("ku", "tg")),
    Group("Indo-European", None, ("sq",)),
    Group("Uralic", "Finnic", ("et", "fi")),
    Group("Uralic", "Sami", ("se", "smn")),
    Group("Uralic", None, ("hu",)),
    Group("Turkic", "Oghuz", ("az", "tk", "tr")),
    Group("Turkic", "Kipchak", ("kk", "ky", "tt")),
    Group("Turkic", None, ("cv", "uz")),  # Oghur and Karluk
    Group("Austronesian", "Malayic", ("id", "ms")),
    Group("Austronesian", "Polynesian", ("mi", "to")),
    Group("Austronesian", None, ("fil", "jv")),
    Group("Niger-Congo", "Bantu", ("sn", "sw", "xh", "zu")),
    Group("Niger-Congo", "Volta-Niger", ("ig", "yo")),
    Group("Niger-Congo", None, ("wo",)),
    Group("Afro-Asiatic", "Cushitic", ("om", "so")),
    Group("Afro-Asiatic", None, ("ha", "mt")),  # Chadic and Semitic
    Group(None, None, ("eo", "eu", "mn", "qu", "vi")),
)


class Lineage(NamedTuple):
    """Where a language, or a word that several share, stands; None where there is nothing to say."""

    language: str | None
    branch: str | None
    family: str | None


LINEAGES = {code: Lineage(code, group.branch, group.family) for group in GROUPS for code in group.codes}


def common(codes: frozenset[str]) -> Lineage:
    """The lineage of a word that these languages share: a rank is kept if it is the same in all of them."""
    lineages = [LINEAGES[code] for code in codes]
    ranks = ({lineage[rank] for lineage in lineages} for rank in range(len(RANKS)))
    return Lineage(*(labels.pop() if len(labels) == 1 else None for labels in ranks))


def parents(rank: int) -> dict[str, str | None]:
    """Class of a rank -> its class of the next rank up, None if it has none there."""
    return {label: lineage[rank + 1] for lineage in LINEAGES.values() if (label := lineage[rank]) is not None}
