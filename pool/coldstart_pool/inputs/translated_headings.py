"""German and French headings of the common columns, without accents and blanks."""

from __future__ import annotations

from coldstart_pool.inputs.columns import Synonyms, synonyms

PLACES = synonyms(
    provider="anbieter cloudanbieter fournisseur",
    region="standort?",
    zone="verfugbarkeitszone zonededisponibilite",
    instance_type="instanztyp maschinentyp typeinstance typedinstance",
    gpu="gputyp grafikkarte typegpu typedegpu cartegraphique",
    gpu_count="anzahlgpus anzahlgpu gpuanzahl nombregpu nombredegpu nombredegpus",
    market="markt marche",
)
PRICES = synonyms(
    gpu_count="anzahl? nombre?",
    price="preis kosten prix tarif cout",
    on_demand="ondemandpreis prixondemand",
    spot="spotpreis prixspot",
    per_gpu="preisprogpu prixpargpu",
    currency="wahrung waehrung devise monnaie",
    unit="einheit unite",
    as_of="datum stand zeit",
)
SUPPLY = synonyms(
    obtainable="verfugbar verfuegbar disponible disponibles",
    requested="angefordert angefragt demande demandes",
    obtained="erhalten obtenu obtenus",
    time="zeit zeitpunkt zeitstempel datum date heure horodatage",
    lead="dauer vorlaufzeit wartezeit duree delai",
    reason="grund fehler raison erreur",
)
DEMAND = synonyms(
    application="anwendung dienst",
    target="ziel zielwert bedarf benotigt benoetigt cible besoin",
    time="zeit zeitpunkt zeitstempel datum date beginn heure horodatage debut",
    stop="ende fin",
    replicas="repliken repliques",
    rate="req/ anfragen/ requetes/",
)
COUNTS = synonyms(instances="instanzen maschinen anzahl nombre machines")
QUOTA = synonyms(limit="grenze kontingent limite", in_use="belegt utilise")
COMMITMENTS = synonyms(until="bis ende fin")


def joined(*parts: Synonyms) -> Synonyms:
    """All words of each field."""
    found: dict[str, frozenset[str]] = {}
    for part in parts:
        for field, words in part.items():
            found[field] = found.get(field, frozenset()) | words
    return found
