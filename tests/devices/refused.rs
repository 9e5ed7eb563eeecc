//! What cannot be used is refused in one line.

use std::net::{TcpListener, TcpStream};

use crate::device::{Device, Server, has_servers};
use crate::session::Session;

#[test]
fn a_device_that_is_not_there_is_refused() {
    let (session, device) = (Session::with_text(), Device::new());
    let servers = device.flags.split(" -dev").next().unwrap();
    let servers = if has_servers() { servers } else { "" };
    let line = format!("-m @f16 -t short.txt -c 64 -w ref.gz -q {servers} -ngl 99 -dev Nonesuch7");
    session.fails(&line, 1, &["no device 'Nonesuch7'", "available are"]);
    assert_eq!(session.files(), ["short.txt"]);
}

#[test]
fn what_is_not_a_server_is_refused() {
    let session = Session::with_text();
    let fails = |address: &str, what: &str| {
        let flag = format!("--rpc {address}");
        let write = format!("-m @f16 -t short.txt -c 64 -w ref.gz -q -ngl 99 {flag}");
        session.fails(&write, 1, &[&flag, what]);
        assert_eq!(session.files(), ["short.txt"]);
        let both = format!("-m @q8 --ref-model @f16 -t short.txt -c 64 -q -ngl 99 {flag}");
        session.fails(&both, 1, &[&flag, what]);
    };
    let line = "-m @f16 -t short.txt -w ref.gz --rpc localhost";
    session.fails(line, 2, &["--rpc", "expected HOST:PORT"]);
    fails("[::1]:50052", "IPv4 only");
    fails("no-such-host.invalid:50052", "the host is not known");
    // The port is free again.
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr();
    fails(&nobody.unwrap().to_string(), "cannot be reached");
}

#[test]
fn a_server_that_is_busy_or_named_twice_is_refused() {
    let (session, server) = (Session::with_text(), Server::start());
    let address = &server.address;
    let line = format!("-m @f16 -t short.txt -c 64 -w ref.gz -q --rpc {address}");
    let (_, port) = address.split_once(':').unwrap();
    let twice = format!("{line},localhost:{port}");
    session.fails(&twice, 1, &["is the same server as", "name it once"]);
    let _other_program = TcpStream::connect(address).unwrap();
    session.fails(&line, 1, &["one program at a time"]);
}
