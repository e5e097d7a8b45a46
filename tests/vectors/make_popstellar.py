"""Makes `popstellar.json` and `popstellar_messages.json` beside it: `python tests/vectors/make_popstellar.py`.

Every verdict is written down here by hand, next to what was done to the data. Hashes are put together here a second
time, from the document; only the signing is ours, and deterministic.

Files:
    popstellar.json: data of every object#action and what is wrong with it:
        [{name, kind, channel, sender, data, fault}], `fault` being a part of the refusal's text, null when all is well
    popstellar_messages.json: message objects and what they prove: [{name, raw, verdict}]
"""

from __future__ import annotations

import base64
import hashlib
import json
from pathlib import Path
from typing import Any

from catchment.crypto import elgamal
from catchment.crypto.ed25519 import Signer

Fields = dict[str, Any]


def b64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode()


def digest(*texts: str) -> str:
    """HashLen of the document."""
    joined = b"".join(str(len(text.encode())).encode() + text.encode() for text in texts)
    return b64(hashlib.sha256(joined).digest())


SIGNERS = {
    name: Signer(hashlib.sha256(f"catchment test key: {name}".encode()).digest())
    for name in ("organizer", "witness", "attendee", "server", "stranger")
}
"""Known to everyone: for tests only."""
KEYS = {name: b64(signer.public) for name, signer in SIGNERS.items()}
TIME = 1_700_000_000
NAME = "Café 🏉"


def signature(name: str, payload: bytes) -> str:
    return b64(SIGNERS[name].sign(payload))


LAO = digest(KEYS["organizer"], str(TIME), NAME)
ROLL_CALL = digest("R", LAO, str(TIME + 1), "first")
OPENED = digest("R", LAO, ROLL_CALL, str(TIME + 20))
CLOSED = digest("R", LAO, OPENED, str(TIME + 30))
MEETING = digest("M", LAO, str(TIME + 2), "meet")
ELECTION = digest("Election", LAO, str(TIME + 40), "vote")
QUESTION = digest("Question", ELECTION, "Which?")
MESSAGE = digest("any", "message")
POINT = elgamal.public_of((7).to_bytes(32, "little"))
SECRET_VOTE = b64(POINT + POINT)
INSTANCE = digest("consensus", "election", ELECTION, "state")
ADDRESS = "wss://host.example:9000/client"

ROOT = "/root"
OWN = f"/root/{LAO}"
BALLOT = f"{OWN}/{ELECTION}"
CHIRPS = f"{OWN}/social/chirps"
REACTIONS = f"{OWN}/social/reactions"
TOKEN = f"{OWN}/social/{KEYS['attendee']}"
COIN = f"{OWN}/coin"
AGREEMENT = f"{OWN}/consensus"
AUTHENTICATION = f"{OWN}/authentication"
FEDERATION = f"{OWN}/federation"


def vote(answer: int | str, *, question: str = QUESTION, **changes: Any) -> Fields:
    return {"id": digest("Vote", ELECTION, question, str(answer)), "question": question, "vote": answer} | changes


def question(**changes: Any) -> Fields:
    made = {
        "question": "Which?",
        "voting_method": "Plurality",
        "ballot_options": ["this", "that"],
        "write_in": False,
    } | changes
    return {"id": digest("Question", ELECTION, made["question"])} | made


def signed_transaction(outputs: list[Fields], *, index: int = 0, **changes: Any) -> Fields:
    """A transaction of the organizer, signed, and its id."""
    spent = b64(bytes(32))
    paid = "".join(f"{each['value']}{each['script']['type']}{each['script']['pubkey_hash']}" for each in outputs)
    sig = signature("organizer", f"{spent}{index}{paid}".encode())
    script = {"type": "P2PKH", "pubkey": KEYS["organizer"], "sig": changes.pop("sig", sig)}
    transaction = {
        "version": 1,
        "inputs": [{"tx_out_hash": spent, "tx_out_index": index, "script": script}],
        "outputs": outputs,
        "lock_time": 0,
    }
    hashed = [script["pubkey"], script["sig"], "P2PKH", spent, str(index), "0"]
    for each in outputs:
        hashed += [each["script"]["pubkey_hash"], each["script"]["type"], str(each["value"])]
    return {"transaction_id": digest(*hashed, "1"), "transaction": transaction} | changes


def output(value: int, **changes: Any) -> Fields:
    owner = b64(hashlib.sha256(SIGNERS["attendee"].public).digest()[:20])
    return {"value": value, "script": {"type": "P2PKH", "pubkey_hash": owner}} | changes


def challenge() -> Fields:
    return message({"object": "federation", "action": "challenge", "value": "ab" * 32, "valid_until": TIME})


def message(data: Fields, sender: str = "organizer") -> Fields:
    raw = json.dumps(data).encode()
    text, proof = b64(raw), signature(sender, raw)
    return {
        "data": text,
        "sender": KEYS[sender],
        "signature": proof,
        "message_id": digest(text, proof),
        "witness_signatures": [],
    }


def consent() -> Fields:
    return {"witness": KEYS["witness"], "signature": signature("witness", base64.urlsafe_b64decode(MESSAGE))}


NONCE = b"a nonce"
GOOD: dict[str, tuple[str, str, Fields]] = {
    "lao#create": (
        ROOT,
        "organizer",
        {
            "id": LAO,
            "name": NAME,
            "creation": TIME,
            "organizer": KEYS["organizer"],
            "witnesses": [KEYS["witness"]],
        },
    ),
    "lao#update_properties": (
        OWN,
        "organizer",
        {"id": LAO, "name": "new", "last_modified": TIME + 5, "witnesses": []},
    ),
    "lao#state": (
        OWN,
        "organizer",
        {
            "id": LAO,
            "name": "new",
            "creation": TIME,
            "last_modified": TIME + 5,
            "organizer": KEYS["organizer"],
            "witnesses": [],
            "modification_id": MESSAGE,
            "modification_signatures": [consent()],
        },
    ),
    "lao#greet": (
        OWN,
        "server",
        {"lao": LAO, "frontend": KEYS["organizer"], "address": ADDRESS, "peers": [{"address": ADDRESS}]},
    ),
    "message#witness": (
        OWN,
        "witness",
        {"message_id": MESSAGE, "signature": signature("witness", base64.urlsafe_b64decode(MESSAGE))},
    ),
    "meeting#create": (
        OWN,
        "organizer",
        {
            "id": MEETING,
            "name": "meet",
            "creation": TIME + 2,
            "location": "here",
            "start": TIME + 3,
            "end": TIME + 4,
            "extra": {"any": ["thing"]},
        },
    ),
    "meeting#state": (
        OWN,
        "organizer",
        {
            "id": MEETING,
            "name": "meet",
            "creation": TIME + 2,
            "last_modified": TIME + 3,
            "start": TIME + 3,
            "modification_id": MESSAGE,
            "modification_signatures": [consent()],
        },
    ),
    "roll_call#create": (
        OWN,
        "organizer",
        {
            "id": ROLL_CALL,
            "name": "first",
            "creation": TIME + 1,
            "proposed_start": TIME + 10,
            "proposed_end": TIME + 20,
            "location": "here",
            "description": "who is there",
        },
    ),
    "roll_call#open": (OWN, "organizer", {"update_id": OPENED, "opens": ROLL_CALL, "opened_at": TIME + 20}),
    "roll_call#reopen": (
        OWN,
        "organizer",
        {"update_id": digest("R", LAO, CLOSED, str(TIME + 31)), "opens": CLOSED, "opened_at": TIME + 31},
    ),
    "roll_call#close": (
        OWN,
        "organizer",
        {"update_id": CLOSED, "closes": OPENED, "closed_at": TIME + 30, "attendees": [KEYS["attendee"]]},
    ),
    "election#setup": (
        OWN,
        "organizer",
        {
            "version": "OPEN_BALLOT",
            "id": ELECTION,
            "lao": LAO,
            "name": "vote",
            "created_at": TIME + 40,
            "start_time": TIME + 41,
            "end_time": TIME + 50,
            "questions": [question()],
        },
    ),
    "election#key": (BALLOT, "server", {"election": ELECTION, "election_key": b64(POINT)}),
    "election#open": (BALLOT, "organizer", {"lao": LAO, "election": ELECTION, "opened_at": TIME + 42}),
    "election#cast_vote": (
        BALLOT,
        "attendee",
        {"lao": LAO, "election": ELECTION, "created_at": TIME + 43, "votes": [vote(1)]},
    ),
    "election#end": (
        BALLOT,
        "organizer",
        {
            "lao": LAO,
            "election": ELECTION,
            "created_at": TIME + 50,
            "registered_votes": digest(vote(1)["id"]),
        },
    ),
    "election#result": (
        BALLOT,
        "server",
        {
            "questions": [
                {
                    "id": QUESTION,
                    "result": [{"ballot_option": "this", "count": 0}, {"ballot_option": "that", "count": 1}],
                }
            ],
        },
    ),
    "chirp#add": (TOKEN, "attendee", {"text": "hello", "parent_id": MESSAGE, "timestamp": TIME + 60}),
    "chirp#delete": (TOKEN, "attendee", {"chirp_id": MESSAGE, "timestamp": TIME + 61}),
    "chirp#notify_add": (CHIRPS, "server", {"chirp_id": MESSAGE, "channel": TOKEN, "timestamp": TIME + 60}),
    "chirp#notify_delete": (CHIRPS, "server", {"chirp_id": MESSAGE, "channel": TOKEN, "timestamp": TIME + 61}),
    "reaction#add": (
        REACTIONS,
        "attendee",
        {"reaction_codepoint": "👍", "chirp_id": MESSAGE, "timestamp": TIME + 62},
    ),
    "reaction#delete": (REACTIONS, "attendee", {"reaction_id": MESSAGE, "timestamp": TIME + 63}),
    "coin#post_transaction": (COIN, "organizer", signed_transaction([output(32)])),
    "popcha#authenticate": (
        AUTHENTICATION,
        "attendee",
        {
            "client_id": "client",
            "nonce": b64(NONCE),
            "identifier": KEYS["attendee"],
            "identifier_proof": signature("attendee", NONCE),
            "state": "any",
            "response_mode": "query",
            "popcha_address": "https://host.example",
        },
    ),
    "consensus#elect": (
        AGREEMENT,
        "organizer",
        {
            "instance_id": INSTANCE,
            "created_at": TIME,
            "key": {"type": "election", "id": ELECTION, "property": "state"},
            "value": "started",
        },
    ),
    "consensus#elect_accept": (
        AGREEMENT,
        "witness",
        {"instance_id": INSTANCE, "message_id": MESSAGE, "accept": True},
    ),
    "consensus#prepare": (
        AGREEMENT,
        "organizer",
        {"instance_id": INSTANCE, "message_id": MESSAGE, "created_at": TIME, "value": {"proposed_try": 1}},
    ),
    "consensus#promise": (
        AGREEMENT,
        "witness",
        {
            "instance_id": INSTANCE,
            "message_id": MESSAGE,
            "created_at": TIME,
            "value": {"accepted_try": -1, "accepted_value": False, "promised_try": 1},
        },
    ),
    "consensus#propose": (
        AGREEMENT,
        "organizer",
        {
            "instance_id": INSTANCE,
            "message_id": MESSAGE,
            "created_at": TIME,
            "value": {"proposed_try": 1, "proposed_value": True},
            "acceptor-signatures": ["any"],
        },
    ),
    "consensus#accept": (
        AGREEMENT,
        "witness",
        {
            "instance_id": INSTANCE,
            "message_id": MESSAGE,
            "created_at": TIME,
            "value": {"accepted_try": 1, "accepted_value": True},
        },
    ),
    "consensus#learn": (
        AGREEMENT,
        "organizer",
        {
            "instance_id": INSTANCE,
            "message_id": MESSAGE,
            "created_at": TIME,
            "value": {"decision": True},
            "acceptor-signatures": [],
        },
    ),
    "consensus#failure": (
        AGREEMENT,
        "organizer",
        {"instance_id": INSTANCE, "message_id": MESSAGE, "created_at": TIME},
    ),
    "federation#challenge_request": (FEDERATION, "organizer", {"timestamp": TIME}),
    "federation#challenge": (FEDERATION, "organizer", {"value": "0f" * 32, "valid_until": TIME}),
    "federation#expect": (
        FEDERATION,
        "organizer",
        {"lao_id": LAO, "server_address": ADDRESS, "public_key": KEYS["stranger"], "challenge": challenge()},
    ),
    "federation#init": (
        FEDERATION,
        "organizer",
        {"lao_id": LAO, "server_address": ADDRESS, "public_key": KEYS["stranger"], "challenge": challenge()},
    ),
    "federation#result": (
        FEDERATION,
        "organizer",
        {"status": "success", "public_key": KEYS["stranger"], "challenge": challenge()},
    ),
    "federation#tokens_exchange": (
        FEDERATION,
        "organizer",
        {"lao_id": LAO, "roll_call_id": ROLL_CALL, "tokens": [KEYS["attendee"]], "timestamp": TIME},
    ),
}

LEFT_OUT = object()
OTHER = digest("something", "else")
MAX = 2**53 - 1

WRONG: list[tuple[str, Fields, str]] = [
    ("lao#create", {"name": ""}, "name"),
    ("lao#create", {"id": OTHER}, "id"),
    ("lao#create", {"creation": TIME + 1}, "id"),
    ("lao#create", {"creation": -1}, "creation"),
    ("lao#create", {"creation": MAX + 1}, "creation"),
    ("lao#create", {"creation": 1.5}, "creation"),
    ("lao#create", {"creation": True}, "creation"),
    ("lao#create", {"organizer": KEYS["stranger"]}, "id"),
    ("lao#create", {"organizer": KEYS["organizer"][:-1]}, "organizer"),
    ("lao#create", {"organizer": "not base64!"}, "organizer"),
    ("lao#create", {"witnesses": [KEYS["witness"]] * 2}, "witnesses"),
    ("lao#create", {"witnesses": ["?"]}, "witnesses[0]"),
    ("lao#update_properties", {"id": OTHER}, "id"),
    ("lao#update_properties", {"name": ""}, "name"),
    ("lao#update_properties", {"witnesses": [KEYS["witness"]] * 2}, "witnesses"),
    ("lao#state", {"id": OTHER}, "id"),
    ("lao#state", {"name": ""}, "name"),
    ("lao#state", {"last_modified": TIME - 1}, "last_modified"),
    ("lao#state", {"witnesses": [KEYS["witness"]] * 2}, "witnesses"),
    ("lao#state", {"modification_id": OTHER}, "modification_signatures[0]"),
    ("lao#state", {"modification_signatures": [consent()] * 2}, "modification_signatures"),
    ("lao#state", {"modification_signatures": [{"witness": KEYS["witness"]}]}, "modification_signatures[0]"),
    ("lao#greet", {"lao": OTHER}, "lao"),
    ("lao#greet", {"address": "http://host.example/client"}, "address"),
    ("lao#greet", {"peers": [{"address": "host"}]}, "peers[0].address"),
    ("message#witness", {"message_id": OTHER}, "signature"),
    ("message#witness", {"signature": b64(bytes(64))}, "signature"),
    ("message#witness", {"signature": b64(bytes(63))}, "signature"),
    ("meeting#create", {"id": OTHER}, "id"),
    ("meeting#create", {"start": TIME}, "start"),
    ("meeting#create", {"end": TIME + 2}, "end"),
    ("meeting#create", {"extra": 1}, "extra"),
    ("meeting#state", {"last_modified": TIME}, "last_modified"),
    ("meeting#state", {"end": TIME}, "end"),
    ("meeting#state", {"modification_id": OTHER}, "modification_signatures[0]"),
    ("roll_call#create", {"id": OTHER}, "id"),
    ("roll_call#create", {"name": ""}, "name"),
    ("roll_call#create", {"proposed_start": TIME}, "proposed_start"),
    ("roll_call#create", {"proposed_end": TIME + 9}, "proposed_end"),
    ("roll_call#open", {"update_id": OTHER}, "update_id"),
    ("roll_call#open", {"opened_at": TIME + 21}, "update_id"),
    ("roll_call#reopen", {"opens": OTHER}, "update_id"),
    ("roll_call#close", {"update_id": OTHER}, "update_id"),
    ("roll_call#close", {"attendees": [KEYS["attendee"]] * 2}, "attendees"),
    ("roll_call#close", {"attendees": ["="]}, "attendees[0]"),
    ("election#setup", {"version": "SOME_BALLOT"}, "version"),
    ("election#setup", {"lao": OTHER}, "lao"),
    ("election#setup", {"id": OTHER}, "id"),
    ("election#setup", {"name": ""}, "name"),
    ("election#setup", {"start_time": TIME}, "start_time"),
    ("election#setup", {"end_time": TIME + 40}, "end_time"),
    ("election#setup", {"questions": []}, "questions"),
    ("election#setup", {"questions": [question()] * 2}, "questions"),
    ("election#setup", {"questions": [question() | {"id": OTHER}]}, "questions[0].id"),
    ("election#setup", {"questions": [question(voting_method="Approval")]}, "questions[0].voting_method"),
    ("election#setup", {"questions": [question(ballot_options=["one"])]}, "questions[0].ballot_options"),
    ("election#setup", {"questions": [question(ballot_options=["one", "one"])]}, "questions[0].ballot_options"),
    ("election#setup", {"questions": [question(write_in=True)]}, "questions[0].write_in"),
    ("election#setup", {"questions": [question(more=1)]}, "more"),
    ("election#key", {"election": OTHER}, "election"),
    ("election#key", {"election_key": b64(bytes(32))}, "election_key"),
    ("election#key", {"election_key": b64(POINT[:31])}, "election_key"),
    ("election#open", {"lao": OTHER}, "lao"),
    ("election#open", {"election": OTHER}, "election"),
    ("election#cast_vote", {"lao": OTHER}, "lao"),
    ("election#cast_vote", {"election": OTHER}, "election"),
    ("election#cast_vote", {"votes": []}, "votes"),
    ("election#cast_vote", {"votes": [vote(0), vote(1)]}, "votes"),
    ("election#cast_vote", {"votes": [vote(1, id=OTHER)]}, "votes[0].id"),
    ("election#cast_vote", {"votes": [vote(-1)]}, "votes[0].vote"),
    ("election#cast_vote", {"votes": [vote("not base64!")]}, "votes[0].vote"),
    ("election#end", {"lao": OTHER}, "lao"),
    ("election#end", {"election": OTHER}, "election"),
    ("election#end", {"registered_votes": "?"}, "registered_votes"),
    ("election#result", {"questions": []}, "questions"),
    ("election#result", {"questions": [{"id": QUESTION, "result": []}]}, "questions[0].result"),
    (
        "election#result",
        {"questions": [{"id": QUESTION, "result": [{"ballot_option": "this", "count": -1}]}]},
        "questions[0].result[0].count",
    ),
    (
        "election#result",
        {"questions": [{"id": QUESTION, "result": [{"ballot_option": "this", "count": 1}] * 2}]},
        "questions[0].result",
    ),
    (
        "election#result",
        {"questions": [{"id": QUESTION, "result": [{"ballot_option": "this", "count": 1}]}] * 2},
        "questions",
    ),
    ("chirp#add", {"text": ""}, "text"),
    ("chirp#add", {"text": "é" * 301}, "text"),
    ("chirp#add", {"parent_id": None}, "parent_id"),
    ("chirp#notify_add", {"channel": OWN}, "channel"),
    ("chirp#notify_add", {"channel": CHIRPS}, "channel"),
    ("chirp#notify_delete", {"channel": f"/root/{OTHER}/social/{KEYS['attendee']}"}, "channel"),
    ("reaction#add", {"reaction_codepoint": ""}, "reaction_codepoint"),
    ("coin#post_transaction", {"transaction_id": OTHER}, "transaction_id"),
    ("coin#post_transaction", {"transaction_id": "@@@"}, "transaction_id"),
    ("coin#post_transaction", signed_transaction([output(32)], sig=b64(bytes(64))), "inputs[0].script.sig"),
    ("coin#post_transaction", signed_transaction([output(32)], sig="CAFEBABE"), "inputs[0].script.sig"),
    ("coin#post_transaction", signed_transaction([output(32)], index=-1), "inputs[0].tx_out_index"),
    ("coin#post_transaction", signed_transaction([output(MAX), output(1)]), "outputs"),
    ("coin#post_transaction", signed_transaction([output(MAX + 1)]), "outputs[0].value"),
    ("coin#post_transaction", signed_transaction([output(-1)]), "outputs[0].value"),
    ("coin#post_transaction", signed_transaction([]), "outputs"),
    ("popcha#authenticate", {"nonce": b64(b"another")}, "identifier_proof"),
    ("popcha#authenticate", {"identifier": KEYS["stranger"]}, "identifier_proof"),
    ("popcha#authenticate", {"identifier_proof": signature("stranger", NONCE)}, "identifier_proof"),
    ("consensus#elect", {"instance_id": OTHER}, "instance_id"),
    ("consensus#elect", {"key": {"type": "election", "id": "?", "property": "state"}}, "key.id"),
    ("consensus#elect_accept", {"accept": 1}, "accept"),
    ("consensus#prepare", {"value": {"proposed_try": 0}}, "value.proposed_try"),
    (
        "consensus#promise",
        {"value": {"accepted_try": -2, "accepted_value": True, "promised_try": 1}},
        "value.accepted_try",
    ),
    ("consensus#propose", {"acceptor-signatures": [1]}, "acceptor-signatures[0]"),
    ("consensus#accept", {"value": {"accepted_try": 1}}, "accepted_value"),
    ("consensus#learn", {"value": {"decision": "yes"}}, "value.decision"),
    ("federation#challenge", {"value": "xy" * 32}, "value"),
    ("federation#expect", {"server_address": "host"}, "server_address"),
    ("federation#init", {"challenge": {"data": ""}}, "challenge"),
    ("federation#result", {"status": "failure"}, "reason"),
    ("federation#result", {"reason": "none"}, "public_key"),
    ("federation#tokens_exchange", {"tokens": [KEYS["attendee"]] * 2}, "tokens"),
]

ALSO_GOOD: list[tuple[str, Fields]] = [
    ("lao#create", {"witnesses": []}),
    ("meeting#create", {"end": LEFT_OUT, "extra": LEFT_OUT, "location": LEFT_OUT}),
    ("roll_call#create", {"description": LEFT_OUT}),
    ("roll_call#close", {"attendees": []}),
    ("election#setup", {"version": "SECRET_BALLOT"}),
    ("election#cast_vote", {"votes": [vote(SECRET_VOTE)]}),
    ("election#end", {"registered_votes": ""}),
    ("election#result", {"witness_signatures": []}),
    ("chirp#add", {"text": "é" * 300, "parent_id": LEFT_OUT}),
    ("coin#post_transaction", signed_transaction([output(0)])),
    ("coin#post_transaction", signed_transaction([output(MAX)])),
    ("coin#post_transaction", signed_transaction([output(1), output(2)], other="passes")),
    ("popcha#authenticate", {"state": LEFT_OUT, "response_mode": LEFT_OUT}),
    ("federation#result", {"status": "failure", "reason": "none", "public_key": LEFT_OUT}),
]


def data() -> list[Fields]:
    """Every kind as it should be, and with one thing wrong."""
    cases = [(kind, {}, None) for kind in GOOD]
    cases += [(kind, changes, None) for kind, changes in ALSO_GOOD]
    cases += WRONG
    made = []
    for number, (kind, changes, fault) in enumerate(cases):
        channel, sender, fields = GOOD[kind]
        name, action = kind.split("#")
        changed = {"object": name, "action": action} | fields | changes
        changed = {key: value for key, value in changed.items() if value is not LEFT_OUT}
        made.append(
            {
                "name": f"{number} {kind} {' '.join(changes)}".rstrip(),
                "kind": kind,
                "channel": channel,
                "sender": sender,
                "data": changed,
                "fault": fault,
            }
        )
    return made


def messages() -> list[Fields]:
    """Message objects and what they prove."""
    good = message({"object": "lao", "action": "create"})
    raw_id = base64.urlsafe_b64decode(good["message_id"])
    seen = {"witness": KEYS["witness"], "signature": signature("witness", raw_id)}
    unsigned_id = {"witness": KEYS["witness"], "signature": signature("witness", good["message_id"].encode())}
    other = message({"object": "lao", "action": "state"})
    over_text = {"signature": signature("organizer", good["data"].encode())}
    over_text["message_id"] = digest(good["data"], over_text["signature"])
    forged = {"sender": KEYS["stranger"]}
    cases: list[tuple[str, Fields, str]] = [
        ("as it should be", {}, "ok"),
        ("witnessed", {"witness_signatures": [seen]}, "ok"),
        ("another sender", forged, "bad_signature"),
        ("another's data", {"data": other["data"]}, "bad_signature"),
        ("another's signature", {"signature": other["signature"]}, "bad_signature"),
        ("signed over the text instead of the bytes", over_text, "bad_signature"),
        ("another id", {"message_id": other["message_id"]}, "bad_id"),
        ("a witness signed the text of the id", {"witness_signatures": [unsigned_id]}, "bad_signature"),
        ("one of two witnesses is wrong", {"witness_signatures": [seen, unsigned_id]}, "bad_signature"),
        (
            "a witness' signature under another's name",
            {"witness_signatures": [seen | {"witness": KEYS["stranger"]}]},
            "bad_signature",
        ),
        ("no padding", {"sender": good["sender"].rstrip("=")}, "malformed"),
        ("base64 of the other alphabet", {"signature": "+" + good["signature"][1:]}, "malformed"),
        ("a letter beyond the bytes", {"sender": good["sender"][:-2] + "B="}, "malformed"),
        ("white space in base64", {"data": good["data"] + "\n"}, "malformed"),
        ("a key of 31 bytes", {"sender": b64(bytes(31))}, "malformed"),
        ("a signature of 63 bytes", {"signature": b64(bytes(63))}, "malformed"),
        ("an id of 33 bytes", {"message_id": b64(bytes(33))}, "malformed"),
        ("data that is a number", {"data": 1}, "malformed"),
        ("no data", {"data": LEFT_OUT}, "malformed"),
        ("no witness signatures", {"witness_signatures": LEFT_OUT}, "malformed"),
        ("a property too many", {"more": 1}, "malformed"),
        ("a witness signature with more", {"witness_signatures": [seen | {"more": 1}]}, "malformed"),
        ("a witness signature without its witness", {"witness_signatures": [{"signature": ""}]}, "malformed"),
    ]
    made = []
    for name, changes, verdict in cases:
        changed = {key: value for key, value in (good | changes).items() if value is not LEFT_OUT}
        made.append({"name": name, "raw": json.dumps(changed), "verdict": verdict})
    for name, raw in (("not JSON", "{"), ("a list", "[]"), ("deep", "[" * 5000), ("empty", "")):
        made.append({"name": name, "raw": raw, "verdict": "malformed"})
    return made


FILES = {"popstellar.json": data, "popstellar_messages.json": messages}


def render(cases: list[Any]) -> str:
    """A file: one case a line, so that a change shows as one."""
    return "[\n" + ",\n".join(json.dumps(case) for case in cases) + "\n]\n"


if __name__ == "__main__":
    for file, make in FILES.items():
        Path(__file__).with_name(file).write_text(render(make()), encoding="utf-8")
