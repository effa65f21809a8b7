//! Requests: who is let in, and what for.

use std::io::{Cursor, Read};
use std::sync::Arc;
use std::thread;

use tiny_http::{Header, Method, Request, Response, Server};

use super::answers::Answers;

/// No question is longer.
const MOST_BYTES: u64 = 16 << 10;
const FORBIDDEN: &str = "This is not for you: open the address that `rematic explore` printed, all of it.\n";
/// Nothing from anywhere else, nothing to anywhere else, no frame around it, no copy of it, and no word of its address.
const HEADERS: [(&str, &str); 4] = [
    (
        "Content-Security-Policy",
        "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; img-src data:; \
         base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    ("X-Content-Type-Options", "nosniff"),
    ("Referrer-Policy", "no-referrer"),
    ("Cache-Control", "no-store"),
];

type Reply = Response<Cursor<Vec<u8>>>;

/// Who is let in: those who ask this machine by its own name, and know the token.
pub(super) struct Door {
    port: u16,
    token: String,
}

impl Door {
    pub(super) fn new(port: u16, token: String) -> Self {
        Door { port, token }
    }

    pub(super) fn address(&self) -> String {
        format!("http://127.0.0.1:{}/{}/", self.port, self.token)
    }

    /// What is asked for behind the token. A page of another site can make a browser send requests here under that site's name,
    /// or as coming from it.
    fn admits<'a>(&self, request: &'a Request) -> Option<&'a str> {
        let all = |name: &'static str| request.headers().iter().filter(move |header| header.field.equiv(name));
        let is_own = |text: &str| ["127.0.0.1", "localhost"].iter().any(|host| text == format!("{host}:{}", self.port));
        let mut hosts = all("Host");
        let host = hosts.next().is_some_and(|host| is_own(host.value.as_str())) && hosts.next().is_none();
        let origin = all("Origin").all(|origin| origin.value.as_str().strip_prefix("http://").is_some_and(is_own));
        let (token, rest) = request.url().strip_prefix('/')?.split_once('/')?;
        (host && origin && self.is_token(token)).then_some(rest)
    }

    /// Looks at every byte, so that the time tells nothing.
    fn is_token(&self, found: &str) -> bool {
        let differs = found.bytes().zip(self.token.bytes()).fold(0, |differs, (a, b)| differs | (a ^ b));
        found.len() == self.token.len() && differs == 0
    }
}

/// Answers requests until the server is unblocked.
pub(super) fn serve(server: &Server, door: Door, page: String, answers: Arc<Answers>) {
    let (door, page) = (Arc::new(door), Arc::new(page));
    for mut request in server.incoming_requests() {
        let (door, page, answers) = (Arc::clone(&door), Arc::clone(&page), Arc::clone(&answers));
        thread::spawn(move || {
            let reply = reply(&mut request, &door, &page, &answers);
            // Who asked may be gone.
            let _ = request.respond(reply);
        });
    }
}

fn reply(request: &mut Request, door: &Door, page: &str, answers: &Answers) -> Reply {
    let Some(path) = door.admits(request).map(str::to_owned) else {
        return response(403, "text/plain", FORBIDDEN.to_owned());
    };
    match (request.method(), path.as_str()) {
        (Method::Get, "") => response(200, "text/html", page.to_owned()),
        (Method::Post, "answer") => {
            let mut body = String::new();
            match request.as_reader().take(MOST_BYTES).read_to_string(&mut body) {
                Ok(_) => response(200, "application/json", answers.answer(&body)),
                Err(_) => response(400, "text/plain", "The question is not text in UTF-8.\n".to_owned()),
            }
        }
        _ => response(404, "text/plain", "There is nothing here.\n".to_owned()),
    }
}

fn response(status: u16, kind: &str, text: String) -> Reply {
    let kind = format!("{kind}; charset=utf-8");
    let headers = HEADERS.iter().copied().chain([("Content-Type", kind.as_str())]);
    let headers = headers.filter_map(|(name, value)| Header::from_bytes(name, value).ok());
    headers.fold(Response::from_string(text).with_status_code(status), Response::with_header)
}

#[cfg(test)]
mod tests {
    use super::Door;

    #[test]
    fn a_token_is_all_of_it() {
        let door = Door::new(1, "abc".to_owned());
        assert!(door.is_token("abc"));
        for wrong in ["", "a", "ab", "abd", "abcd", "ABC"] {
            assert!(!door.is_token(wrong), "{wrong}");
        }
    }
}
