"""HTTP: what machines ask for in the course of a boot (`app`), and what operators do (`admin`)."""
