// Package model is a small model of the protocol, and explores every order in which its steps can happen. Each step
// stands for a statement or a transaction of the server, or for what a client does between two of them. Invariants are
// conditions on steps and states; a deliberate mistake breaks one of them, and the shortest way there is told.
//
// docs/model.md says which function each step stands for, and what the model leaves out.
package model
